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

{{/* What the Deployments of the data plane run: one of all targets, or one of each. A YAML list. */}}
{{- define "kellet.components" -}}
{{- if eq .Values.targets "split" -}}
[gateway, auth, device-registry, device-link, telemetry, rules-engine, chain-anchor, verifier]
{{- else -}}
[apiserver]
{{- end -}}
{{- end -}}

{{/* The component whose pods have the public ports, and the one whose pods serve the operator. */}}
{{- define "kellet.publicComponent" -}}
{{ ternary "gateway" "apiserver" (eq .Values.targets "split") }}
{{- end -}}
{{- define "kellet.controlComponent" -}}
{{ ternary "device-link" "apiserver" (eq .Values.targets "split") }}
{{- end -}}

{{/* Settings of the pods of a component: those of apiserver, and over them those of the target. dict "root" "component" */}}
{{- define "kellet.podSettings" -}}
{{- $own := index .root.Values.split .component | default dict -}}
{{ toYaml (mustMergeOverwrite (deepCopy .root.Values.apiserver) (deepCopy $own)) }}
{{- end -}}

{{/* Where the gateway finds the other targets: headless Services, over whose pods it balances calls. */}}
{{- define "kellet.serviceAddresses" -}}
{{- $addresses := list -}}
{{- range without (include "kellet.components" . | fromYamlArray) "gateway" -}}
{{- $addresses = append $addresses (printf "%s=%s-%s:9091" . (include "kellet.fullname" $) .) -}}
{{- end -}}
{{ join "," $addresses }}
{{- end -}}

{{/* The dependencies without which a pod of this component still serves. dict "root" "component" */}}
{{- define "kellet.unneeded" -}}
{{- if eq .component "gateway" -}}
{{ prepend (without (include "kellet.components" .root | fromYamlArray) "gateway" "auth") "nats" | join "," }}
{{- else if eq .component "chain-anchor" -}}
nats,processor,headers
{{- else -}}
nats
{{- end -}}
{{- end -}}

{{/* The name of the priority class of pods without one of their own. */}}
{{- define "kellet.priorityClassName" -}}
{{- if .Values.priorityClass.create }}{{ include "kellet.fullname" . }}{{ end -}}
{{- end -}}

{{/* The Secret with the certificate of the pods: as given, else the one that cert-manager writes. */}}
{{- define "kellet.tlsSecret" -}}
{{- $own := .Values.apiserver.tls.secret -}}
{{- $mqtt := .Values.apiserver.mqtt.tlsSecret -}}
{{- if and $own $mqtt (ne $own $mqtt) }}{{ fail "apiserver.tls.secret and apiserver.mqtt.tlsSecret must be the same: a pod has one certificate" }}{{ end -}}
{{- if or $own $mqtt -}}
{{ $own | default $mqtt }}
{{- else if and .Values.certificate.issuer.name .Values.apiserver.mqtt.host -}}
{{ include "kellet.fullname" . }}-public
{{- end -}}
{{- end -}}

{{/* The Secret with the certificate of an Ingress: as given, else the one that cert-manager writes. dict "root" "ingress" */}}
{{- define "kellet.ingressTlsSecret" -}}
{{- if .ingress.tlsSecret -}}
{{ .ingress.tlsSecret }}
{{- else if .root.Values.certificate.issuer.name -}}
{{ include "kellet.fullname" .root }}-public
{{- end -}}
{{- end -}}

{{/* The origin at which a part is published by its Ingress or by routes; empty if it is not. dict "root" "part" */}}
{{- define "kellet.publishedOrigin" -}}
{{- $ingress := index .root.Values.ingress .part -}}
{{- $hosts := index .root.Values.gateway .part "hosts" -}}
{{- if $ingress.host -}}
{{ ternary "https" "http" (ne (include "kellet.ingressTlsSecret" (dict "root" .root "ingress" $ingress)) "") }}://{{ $ingress.host }}
{{- else if $hosts -}}
https://{{ first $hosts }}
{{- end -}}
{{- end -}}

{{/* The URL of the REST API: as given, else where it is published. */}}
{{- define "kellet.publicUrl" -}}
{{ .Values.apiserver.publicUrl | default (include "kellet.publishedOrigin" (dict "root" . "part" "api")) }}
{{- end -}}

{{/* The URL for callbacks of the processor: as given, else below that of the REST API. */}}
{{- define "kellet.callbackUrl" -}}
{{- if .Values.processor.callbackUrl -}}
{{ .Values.processor.callbackUrl }}
{{- else -}}
{{- with include "kellet.publicUrl" . }}{{ trimSuffix "/" . }}/api/v1/callbacks/arc{{ end -}}
{{- end -}}
{{- end -}}

{{/*
The Secret and key of a secret: those named for the database and the broker, those of the bundled ones, else the main Secret.
dict "root" "key"; returns YAML.
*/}}
{{- define "kellet.secretRef" -}}
{{- $values := .root.Values -}}
{{- $own := get (dict "databaseUrl" $values.database.url "databaseDirectUrl" $values.database.directUrl "natsUrl" $values.broker.url) .key | default dict -}}
{{- if $own.secret -}}
{ name: {{ $own.secret | quote }}, key: {{ $own.key | quote }} }
{{- else if and $values.postgresql.enabled (eq .key "databaseUrl") -}}
{ name: {{ include "kellet.fullname" .root }}-postgresql, key: databaseUrl }
{{- else if and $values.nats.enabled (eq .key "natsUrl") -}}
{ name: {{ include "kellet.fullname" .root }}-nats, key: natsUrl }
{{- else -}}
{ name: {{ $values.existingSecret | quote }}, key: {{ .key }} }
{{- end -}}
{{- end -}}

{{/* One environment variable from a Secret: dict "root" "name" "key" "optional". */}}
{{- define "kellet.secretEnv" -}}
{{- $ref := include "kellet.secretRef" . | fromYaml -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ $ref.name }}
      key: {{ $ref.key }}
      {{- if and .optional (eq $ref.name .root.Values.existingSecret) }}
      optional: true
      {{- end }}
{{- end -}}

{{/* NetworkPolicy rules that allow DNS queries, wherever the cluster's DNS is. */}}
{{- define "kellet.dnsEgress" -}}
- ports:
    - { port: 53, protocol: UDP }
    - { port: 53, protocol: TCP }
{{- end -}}

{{/* The dashboard's origin: as given, else where it is published. */}}
{{- define "kellet.dashboardOrigin" -}}
{{ .Values.apiserver.dashboardOrigin | default (include "kellet.publishedOrigin" (dict "root" . "part" "dashboard")) }}
{{- end -}}

{{/* Labels of the bundled servers: another name than Kellet's, so that no selector of it matches. dict "root" "name" */}}
{{- define "kellet.bundledSelector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end -}}
{{- define "kellet.bundledLabels" -}}
{{ include "kellet.bundledSelector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* The volume of a bundled server. */}}
{{- define "kellet.claims" -}}
- metadata: { name: data }
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .className }}
    storageClassName: {{ . }}
    {{- end }}
    resources: { requests: { storage: {{ .size }} } }
{{- end -}}

{{/* Selects the pods of the data plane, whatever their targets. */}}
{{- define "kellet.dataPlaneSelector" -}}
matchLabels:
  app.kubernetes.io/name: kellet
  app.kubernetes.io/instance: {{ .Release.Name }}
matchExpressions:
  - { key: app.kubernetes.io/component, operator: In, values: {{ include "kellet.components" . }} }
{{- end -}}
