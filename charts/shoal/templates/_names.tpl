{{/* The name of everything that belongs to the operator: the release's, with the chart's in it once. */}}
{{- define "shoal.name" -}}
{{- if contains "shoal" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-shoal" (.Release.Name | trunc 44 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "shoal.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (printf "%s-operator" (include "shoal.name" .)) }}
{{- end }}

{{/* What selects the operator's pod; never changes over the life of a release. */}}
{{- define "shoal.selector" -}}
app.kubernetes.io/name: shoal-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shoal.labels" -}}
{{ include "shoal.selector" . }}
app.kubernetes.io/part-of: shoal
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* An image's reference: (dict "image" .Values.images.stage "root" $) */}}
{{- define "shoal.image" -}}
{{- if .image.digest }}{{ printf "%s@%s" .image.repository .image.digest }}{{ else }}{{ printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) }}{{ end }}
{{- end }}

{{/* The namespaces that are served, as a JSON list; empty: all. */}}
{{- define "shoal.namespaces" -}}
{{- if eq .Values.mode "Cluster" }}[]{{ else }}{{ .Values.watchNamespaces | default (list .Release.Namespace) | toJson }}{{ end }}
{{- end }}

{{/* What selects the gateway's pods; never changes over the life of a release. */}}
{{- define "shoal.gateway.selector" -}}
app.kubernetes.io/name: shoal-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shoal.gateway.labels" -}}
{{ include "shoal.gateway.selector" . }}
app.kubernetes.io/part-of: shoal
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What selects the agents' pods; never changes over the life of a release. */}}
{{- define "shoal.agent.selector" -}}
app.kubernetes.io/name: shoal-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shoal.agent.labels" -}}
{{ include "shoal.agent.selector" . }}
app.kubernetes.io/part-of: shoal
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
