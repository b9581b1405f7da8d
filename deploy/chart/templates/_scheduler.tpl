{{/* The account of all schedulers. */}}
{{- define "kai.schedulerAccount" }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: kai-scheduler
  namespace: {{ .Release.Namespace }}
  labels: {{- include "kai.labels" (list . "kai-scheduler" "hub") | nindent 4 }}
automountServiceAccountToken: false
{{- end }}

{{/* What a shard consists of: (list . SHARD). */}}
{{- define "kai.scheduler" }}
{{- $root := index . 0 }}
{{- $shard := index . 1 }}
{{- with $root }}
{{- $cluster := $shard.cluster | default .Values.cluster }}
{{- $name := include "kai.schedulerName" (list . $shard) }}
{{- $id := eq $cluster .Values.cluster | ternary $shard.name (printf "%s.%s" $cluster $shard.name) }}
{{- if $shard.next }}{{ $id = printf "%s.next" $id }}{{ end }}
{{- $image := $shard.next | default (include "kai.image" .) }}
{{- $selector := dict "app.kubernetes.io/name" "kai-scheduler" "kai.scheduler/shard" $id }}
{{- $config := $shard.config | default dict }}
{{- if and .Values.spoke.enabled .Values.spoke.gpuSharing.enabled }}
{{- $config = merge (dict) $config (dict "gpu_sharing" true "gpu_reservation_namespace" (include "kai.clusterWide" (list . .Values.spoke.gpuSharing.namespace))) }}
{{- end }}
{{- with $config }}
---
# Settings of the shard (docs/reference/scheduler-settings.md).
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "kai.labels" (list $root "kai-scheduler" "hub") | nindent 4 }}
data:
  scheduler.yaml: | {{- toYaml . | nindent 4 }}
{{- end }}
---
apiVersion: apps/v1
kind: {{ if $shard.shared }}StatefulSet{{ else }}Deployment{{ end }}
metadata:
  name: {{ $name }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "kai.labels" (list . "kai-scheduler" "hub") | nindent 4 }}
    kai.scheduler/shard: {{ $id }}
spec:
  {{- if $shard.shared }}
  # Each replica has its part of the groups, by its name, and they need not wait for each other.
  serviceName: {{ $name }}
  podManagementPolicy: Parallel
  {{- end }}
  replicas: {{ $shard.replicas | default .Values.hub.scheduler.replicas }}
  selector:
    matchLabels: { {{- include "kai.inline" $selector -}} }
  template:
    metadata:
      labels:
        {{- include "kai.podLabels" (list . "kai-scheduler" "hub") | nindent 8 }}
        kai.scheduler/shard: {{ $id }}
      annotations:
        {{- with $config }}
        kai.scheduler/config: {{ toYaml . | sha256sum }}
        {{- end }}
        {{- with include "kai.policiesAnnotation" . }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- include "kai.podAnnotations" . | nindent 8 }}
    spec:
      {{- include "kai.pod" (list . .Values.hub.scheduler) | nindent 6 }}
      {{- include "kai.spread" $selector | nindent 6 }}
      # It does not talk to the Kubernetes API.
      serviceAccountName: kai-scheduler
      automountServiceAccountToken: false
      {{- if .Values.spoke.enabled }}
      # A scheduler that does not know a node's zones yet schedules as if it had none. It waits for the watcher's first
      # lists, but not for ever: a scheduler that is started again needs no watcher.
      initContainers:
        - name: nodes-known
          image: {{ $image }}
          command:
            - python
            - -c
            - |
              import time, urllib.request
              for _ in range(60):
                  try:
                      with urllib.request.urlopen("http://kai-watcher.{{ .Release.Namespace }}:8080/readyz", timeout=5) as answer:
                          if b"stands by" not in answer.read():
                              break
                  except OSError:
                      pass
                  time.sleep(5)
          resources:
            requests: {cpu: 10m, memory: 32Mi}
            limits: {memory: 64Mi}
          securityContext: {{- include "kai.restricted" . | nindent 12 }}
      {{- end }}
      containers:
        - name: scheduler
          image: {{ $image }}
          command: [kai-scheduler]
          env:
            - {name: KAI_CLUSTER, value: {{ quote $cluster }}}
            - {name: KAI_SHARD, value: {{ quote $shard.name }}}
            {{- if $shard.next }}
            # A shadow of the shard's scheduler until `kai shadow promote`.
            - {name: KAI_SHADOW, value: {{ $config.scheduler_name | default "kai-ledger" }}}
            {{- end }}
            {{- if $shard.shared }}
            - name: KAI_REPLICA
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            {{- end }}
            {{- if $config }}
            - {name: KAI_SCHEDULER_CONFIG, value: /etc/kai/config/scheduler.yaml}
            {{- end }}
            {{- include "kai.bus" (list . "scheduler") | nindent 12 }}
            {{- include "kai.log" (list . "scheduler") | nindent 12 }}
            {{- include "kai.env" (list . .Values.hub.scheduler) | nindent 12 }}
          ports:
            - {name: http, containerPort: 8080}
          {{- include "kai.probes" "http" | nindent 10 }}
          resources: {{- toYaml .Values.hub.scheduler.resources | nindent 12 }}
          securityContext: {{- include "kai.restricted" . | nindent 12 }}
          {{- $mounts := printf "%s\n%s" (include "kai.policiesMount" .) (include "kai.mounts" (list . "scheduler" "scheduler")) | trim }}
          {{- if or $config $mounts }}
          volumeMounts:
            {{- if $config }}
            - {name: config, mountPath: /etc/kai/config, readOnly: true}
            {{- end }}
            {{- with $mounts }}
            {{- trim . | nindent 12 }}
            {{- end }}
      volumes:
        {{- if $config }}
        - name: config
          configMap: {name: {{ $name }}}
        {{- end }}
        {{- with include "kai.policiesVolume" . }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with include "kai.volumes" (list . "scheduler" "scheduler") }}
        {{- trim . | nindent 8 }}
        {{- end }}
          {{- end }}
{{- if $shard.shared }}
---
# A StatefulSet has a Service of its own; no program calls it.
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "kai.labels" (list . "kai-scheduler" "hub") | nindent 4 }}
spec:
  clusterIP: None
  selector: { {{- include "kai.inline" $selector -}} }
  ports:
    - {name: http, port: 8080, targetPort: http}
{{- end }}
{{- include "kai.budget" (list . $name "hub" $selector) }}
{{- end }}
{{- end }}
