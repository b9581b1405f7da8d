{{/* Labels of an object: (list . "kai-api" "hub"). Helm's own are left out of what kustomize is given. */}}
{{- define "kai.labels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/part-of: kai-ledger
app.kubernetes.io/component: {{ index . 2 }}
app.kubernetes.io/version: {{ quote $root.Chart.AppVersion }}
{{- if $root.Values.labelsOfHelm }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version | replace "+" "_" }}
{{- end }}
{{- with $root.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of a pod: those that no upgrade changes by itself. */}}
{{- define "kai.podLabels" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/part-of: kai-ledger
app.kubernetes.io/component: {{ index . 2 }}
{{- if has (index . 1) (list "kai-binder" "kai-ingest" "kai-projector" "kai-relay" "kai-scheduler" "kai-watcher") }}
# The API asks it for its health.
kai.scheduler/health: asked
{{- end }}
{{- end }}

{{/* Annotations of a pod: the scraping of its metrics, and what the values add. */}}
{{- define "kai.podAnnotations" -}}
prometheus.io/scrape: "true"
prometheus.io/port: "8080"
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "kai.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What every pod has, and what its service's values say of it: (list . .Values.hub.api). */}}
{{- define "kai.pod" -}}
{{- $root := index . 0 -}}
{{- $service := index . 1 -}}
# Variables for each service of the namespace would begin with KAI_, too.
enableServiceLinks: false
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $service.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $service.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $service.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Not two on one node, nor in one zone: a dictionary of labels. */}}
{{- define "kai.spread" -}}
# Not two on one node, nor in one zone, as far as there are others.
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchLabels: { {{- include "kai.inline" . -}} }}
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchLabels: { {{- include "kai.inline" . -}} }}
{{- end }}

{{/* Labels on one line. */}}
{{- define "kai.inline" -}}
{{- $parts := list -}}
{{- range $key, $value := . -}}
{{- $parts = append $parts (printf "%s: %s" $key $value) -}}
{{- end -}}
{{- join ", " $parts -}}
{{- end }}

{{- define "kai.restricted" -}}
runAsNonRoot: true
runAsUser: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "kai.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: http}
readinessProbe:
  httpGet: {path: /readyz, port: http}
{{- end }}

{{/* Where it listens, and the variables that the values add: (list . .Values.hub.api). */}}
{{- define "kai.env" -}}
- {name: KAI_HTTP_HOST, value: "0.0.0.0"}
- {name: KAI_HTTP_PORT, value: "8080"}
{{- range $name, $value := (index . 1).env }}
- {name: {{ $name }}, value: {{ quote $value }}}
{{- end }}
{{- end }}

{{/* Where the log is, by the role: (list . "append"). */}}
{{- define "kai.log" -}}
{{- $postgres := (index . 0).Values.postgres -}}
- name: KAI_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ index $postgres.secrets (index . 1) }}, key: {{ $postgres.secretKey }}}}
{{- if $postgres.tls.enabled }}
# The server has to prove who it is, unless the url has an sslmode of its own.
- {name: PGSSLMODE, value: verify-full}
- {name: PGSSLROOTCERT, value: /etc/kai/postgres/ca.crt}
{{- end }}
{{- end }}

{{/* Where the bus is, by the user: (list . "relay"). With TLS the url is no secret, and the seed of the user's key is a file. */}}
{{- define "kai.bus" -}}
{{- $root := index . 0 -}}
{{- $nats := $root.Values.nats -}}
{{- if $nats.tls.enabled -}}
{{- $servers := $nats.tls.servers | default (list (printf "nats.%s:%v" $root.Release.Namespace $nats.port)) -}}
- name: KAI_NATS_URL
  value: tls://{{ join ",tls://" $servers }}?nkey=/etc/kai/nats/seed&ca=/etc/kai/nats/ca.crt
{{- else -}}
- name: KAI_NATS_URL
  valueFrom: {secretKeyRef: {name: {{ index $nats.secrets (index . 1) }}, key: {{ $nats.secretKey }}}}
{{- end }}
{{- end }}

{{/* Where files of the log's and the bus' TLS are: (list . "append" "relay"), "" for one that is not used. */}}
{{- define "kai.mounts" -}}
{{- $values := (index . 0).Values -}}
{{- if and (index . 1) $values.postgres.tls.enabled }}
- {name: postgres-authority, mountPath: /etc/kai/postgres, readOnly: true}
{{- end }}
{{- if and (index . 2) $values.nats.tls.enabled }}
- {name: nats-key, mountPath: /etc/kai/nats, readOnly: true}
{{- end }}
{{- end }}

{{/* Policies' files in a pod: the annotation by which it is made anew, the mount, the volume; and who has their code. */}}
{{- define "kai.policiesAnnotation" -}}
{{- with .Values.hub.policies.files -}}
kai.scheduler/policies: {{ toYaml . | sha256sum }}
{{- end }}
{{- end }}
{{- define "kai.policiesMount" -}}
{{- if .Values.hub.policies.files -}}
- {name: policies, mountPath: /etc/kai/policies, readOnly: true}
{{- end }}
{{- end }}
{{- define "kai.policiesVolume" -}}
{{- if .Values.hub.policies.files -}}
- {name: policies, configMap: {name: kai-policies}}
{{- end }}
{{- end }}
{{- define "kai.policiesCode" -}}
{{- $sources := ternary (list "/etc/kai/policies") (list) (not (empty .Values.hub.policies.files)) -}}
{{- range .Values.hub.scheduler.shards -}}
{{- range (.config | default dict).policies -}}
{{- with .name }}{{ $sources = append $sources . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with $sources -}}
- {name: KAI_POLICIES, value: {{ uniq . | join "," | quote }}}
{{- end }}
{{- end }}

{{/* The volumes of these: (list . "append" "relay"). */}}
{{- define "kai.volumes" -}}
{{- $values := (index . 0).Values -}}
{{- if and (index . 1) $values.postgres.tls.enabled }}
- name: postgres-authority
  projected:
    sources:
      - {{ include "kai.authority" $values.postgres.tls.authority }}
{{- end }}
{{- if and (index . 2) $values.nats.tls.enabled }}
- name: nats-key
  projected:
    sources:
      - secret: {name: {{ index $values.nats.secrets (index . 2) }}, items: [{key: {{ $values.nats.tls.seedKey }}, path: seed}]}
      - {{ include "kai.authority" $values.nats.tls.authority }}
{{- end }}
{{- end }}

{{/* An authority as a source of a volume, in the file ca.crt. */}}
{{- define "kai.authority" -}}
{{ eq .kind "ConfigMap" | ternary "configMap" "secret" }}: {name: {{ .name }}, items: [{key: {{ .key }}, path: ca.crt}]}
{{- end }}

{{/* A PodDisruptionBudget: (list . "kai-api" "hub" (dict "app.kubernetes.io/name" "kai-api")). */}}
{{- define "kai.budget" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.disruptionBudgets }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "kai.labels" (list $root (get (index . 3) "app.kubernetes.io/name") (index . 2)) | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: { {{- include "kai.inline" (index . 3) -}} }
{{- end }}
{{- end }}

{{/* What a shard's Deployment is called: kai-scheduler, kai-scheduler-red, kai-scheduler-west-red. */}}
{{- define "kai.schedulerName" -}}
{{- $root := index . 0 -}}
{{- $shard := index . 1 -}}
kai-scheduler
{{- if and $shard.cluster (ne $shard.cluster $root.Values.cluster) -}}-{{ $shard.cluster }}{{- end -}}
{{- if ne $shard.name "default" -}}-{{ $shard.name }}{{- end -}}
{{- if $shard.next -}}-next{{- end -}}
{{- end }}

{{/* What an object is called that is not in the release's namespace: (list . "kai-watcher"). Elsewhere than in kai-system it has
the namespace in its name, so that a second release of the cluster has its own. */}}
{{- define "kai.clusterWide" -}}
{{- $namespace := (index . 0).Release.Namespace -}}
{{ index . 1 }}{{ if ne $namespace "kai-system" }}-{{ $namespace }}{{ end }}
{{- end }}

{{/* A ClusterRoleBinding of a role to a service's account: (list . "kai-binder-events" "kai-binder"). */}}
{{- define "kai.binding" -}}
{{- $root := index . 0 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "kai.clusterWide" (list $root (index . 1)) }}
  labels: {{- include "kai.labels" (list $root (index . 2) "spoke") | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ include "kai.clusterWide" (list $root (index . 1)) }}}
subjects:
  - {kind: ServiceAccount, name: {{ index . 2 }}, namespace: {{ $root.Release.Namespace }}}
{{- end }}

{{/* Who is a client of the log or of the bus, of what is rendered: (list . "bus"). */}}
{{- define "kai.clients" -}}
{{- $values := (index . 0).Values -}}
{{- $clients := list -}}
{{- if $values.hub.enabled -}}
{{- $clients = concat $clients (list "kai-projector" "kai-relay" "kai-scheduler") -}}
{{- if eq (index . 1) "log" -}}{{- $clients = concat $clients (list "kai-api" "kai-migrate") -}}{{- end -}}
{{- end -}}
{{- if and $values.hub.enabled $values.hub.dispatch.enabled -}}{{- $clients = append $clients "kai-hub" -}}{{- end -}}
{{- if $values.spoke.enabled -}}
{{- $clients = concat $clients (list "kai-binder" "kai-ingest" "kai-watcher") -}}
{{- if and $values.spoke.webhook.enabled (eq (index . 1) "log") -}}{{- $clients = append $clients "kai-webhook" -}}{{- end -}}
{{- if and $values.spoke.registration.enabled (eq (index . 1) "log") -}}{{- $clients = append $clients "kai-register" -}}{{- end -}}
{{- end -}}
{{- sortAlpha $clients | join ", " -}}
{{- end }}

{{/* What the operator makes operands from, by the names of its files. */}}
{{- define "kai.operatorTemplates" -}}
scheduler.yaml: |
  {{- include "kai.schedulerAccount" . | nindent 2 }}
  {{- include "kai.scheduler" (list . (dict "name" "default")) | nindent 2 }}
exporter.yaml: |
  {{- include "kai.exporter" . | nindent 2 }}
{{- end }}
