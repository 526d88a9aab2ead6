{{/*
The operator's rights, exactly the verbs that it uses: objects come through lists and watches, change by server-side
apply (a patch, and a create when the object is new), and go by delete. It starts no pod of its own and enters none.
*/}}

{{/* In every namespace that is served. */}}
{{- define "shoal.rules.namespace" -}}
- apiGroups: [shoal.dev]
  resources: [shardedmodels]
  verbs: [list, watch]
- apiGroups: [shoal.dev]
  resources: [shardedmodels/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# A kubelet brings a changed plan to the router's pod when the pod itself changes: the operator names the plan on it.
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
# How far a compile Job is stands in its log.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [list, watch, create, patch, delete]
# Certificates and compiled models stay until their ShardedModel goes, and then the garbage collector takes them.
- apiGroups: [""]
  resources: [secrets, persistentvolumeclaims]
  verbs: [list, watch, create, patch]
# A user's claim with a compiled model: its volume says which nodes can mount it.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
# `get` is here for the routers: a Role lets each read its own plan, and nobody can grant what they do not hold.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies, ingresses]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [list, watch, create, patch, delete]
{{- end }}

{{/* In the whole cluster: what planning on Node objects needs to see, and whether the CRD is there. */}}
{{- define "shoal.rules.nodes" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
# kopf waits for its kind to appear, and for it to come back after an upgrade of the CRD.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
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

{{/* The gateway's: which models there are. Their Services it finds by name. */}}
{{- define "shoal.gateway.rules" -}}
- apiGroups: [shoal.dev]
  resources: [shardedmodels]
  verbs: [list, watch]
{{- end }}

{{/* The agent's: the status of nodes, by which a node is annotated too. A policy narrows it to the agent's own node. */}}
{{- define "shoal.agent.rules" -}}
- apiGroups: [""]
  resources: [nodes/status]
  verbs: [patch]
{{- end }}
