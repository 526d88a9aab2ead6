{{/*
The operator's rights, exactly the verbs that it uses. Server-side apply is a patch, and a create when the object is new.
What runs inside pods (exec, logs) is out of its reach.
*/}}

{{/* In every namespace that is served. */}}
{{- define "shoal.rules.namespace" -}}
- apiGroups: [shoal.dev]
  resources: [shardedmodels]
  verbs: [get, list, watch]
- apiGroups: [shoal.dev]
  resources: [shardedmodels/status]
  verbs: [patch]
# Owner references with blockOwnerDeletion need this right on the owner.
- apiGroups: [shoal.dev]
  resources: [shardedmodels/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [configmaps, secrets, services, serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies, ingresses]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# The Role that lets a router watch its own plan. Kubernetes lets nobody grant more than they hold.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}

{{/* In the whole cluster: what planning on Node objects needs to see. */}}
{{- define "shoal.rules.nodes" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get]
{{- end }}

{{/* In the operator's own namespace: leader election. */}}
{{- define "shoal.rules.lease" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update]
{{- end }}
