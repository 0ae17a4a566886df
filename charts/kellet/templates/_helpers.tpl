{{/* Names and labels shared by all templates. */}}
{{- define "kellet.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{- define "kellet.selector" -}}
app.kubernetes.io/name: kellet
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "kellet.labels" -}}
{{ include "kellet.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "kellet.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "kellet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "kellet.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* One environment variable from the main Secret: dict "root" "name" "key" "optional". */}}
{{- define "kellet.secretEnv" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .root.Values.existingSecret }}
      key: {{ .key }}
      {{- if .optional }}
      optional: true
      {{- end }}
{{- end -}}

{{/* NetworkPolicy rules that allow DNS queries, wherever the cluster's DNS is. */}}
{{- define "kellet.dnsEgress" -}}
- ports:
    - { port: 53, protocol: UDP }
    - { port: 53, protocol: TCP }
{{- end -}}

{{/* The dashboard's origin: as given, else where its Ingress publishes it. */}}
{{- define "kellet.dashboardOrigin" -}}
{{- $ingress := .Values.dashboard.ingress -}}
{{- if .Values.apiserver.dashboardOrigin -}}
{{ .Values.apiserver.dashboardOrigin }}
{{- else if $ingress.host -}}
{{ ternary "https" "http" (ne $ingress.tlsSecret "") }}://{{ $ingress.host }}
{{- end -}}
{{- end -}}
