{{/* The exporter: its account, and a pod on each node. */}}
{{- define "kai.exporter" }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: kai-exporter
  namespace: {{ .Release.Namespace }}
  labels: {{- include "kai.labels" (list . "kai-exporter" "spoke") | nindent 4 }}
automountServiceAccountToken: {{ .Values.spoke.exporter.publishNrt }}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: kai-exporter
  namespace: {{ .Release.Namespace }}
  labels: {{- include "kai.labels" (list . "kai-exporter" "spoke") | nindent 4 }}
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: kai-exporter}
  updateStrategy:
    rollingUpdate: {maxUnavailable: 10%}
  template:
    metadata:
      labels: {{- include "kai.podLabels" (list . "kai-exporter" "spoke") | nindent 8 }}
      annotations: {{- include "kai.podAnnotations" . | nindent 8 }}
    spec:
      {{- include "kai.pod" (list . .Values.spoke.exporter) | nindent 6 }}
      serviceAccountName: kai-exporter
      automountServiceAccountToken: {{ .Values.spoke.exporter.publishNrt }}
      containers:
        - name: exporter
          image: {{ include "kai.image" . }}
          command: [kai-exporter]
          env:
            - {name: KAI_CLUSTER, value: {{ quote .Values.cluster }}}
            - {name: KAI_INGEST_URL, value: {{ .Values.spoke.exporter.ingestUrl | default (printf "http://kai-ingest.%s:8080" .Release.Namespace) | quote }}}
            - name: KAI_NODE_NAME
              valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
            - {name: KAI_TOKEN_FILE, value: /var/run/secrets/kai/token}
            - {name: KAI_SYSFS_ROOT, value: /host/sys}
            {{- if .Values.spoke.exporter.publishNrt }}
            - {name: KAI_PUBLISH_NRT, value: "true"}
            {{- end }}
            {{- include "kai.env" (list . .Values.spoke.exporter) | nindent 12 }}
            {{- if .Values.spoke.exporter.stateFiles }}
            # The kubelet's state files tell pods' uids and what init containers keep, and that nothing has changed, so
            # that looking for changes can be frequent. The kubelet replaces the files, so their directory is mounted,
            # which shows the exporter also the volumes of the node's pods. Where that must not be, set
            # spoke.exporter.stateFiles to false: what init containers keep is then predicted.
            - {name: KAI_KUBELET_STATE_DIR, value: /host/kubelet}
            - {name: KAI_POLL_INTERVAL_S, value: "0.2"}
            {{- end }}
          ports:
            - {name: http, containerPort: 8080}
          {{- include "kai.probes" "http" | nindent 10 }}
          resources: {{- toYaml .Values.spoke.exporter.resources | nindent 12 }}
          securityContext:
            # The kubelet's socket is root's.
            runAsUser: 0
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
            seccompProfile: {type: RuntimeDefault}
          volumeMounts:
            - {name: podresources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
            - {name: numa, mountPath: /host/sys/devices/system/node, readOnly: true}
            - {name: token, mountPath: /var/run/secrets/kai, readOnly: true}
            {{- if .Values.spoke.exporter.stateFiles }}
            - {name: kubelet, mountPath: /host/kubelet, readOnly: true}
            {{- end }}
      volumes:
        - name: podresources
          hostPath: {path: {{ .Values.spoke.exporter.kubeletDirectory }}/pod-resources, type: Directory}
        - name: numa
          hostPath: {path: /sys/devices/system/node, type: Directory}
        - name: token
          projected:
            sources:
              - serviceAccountToken: {path: token, audience: kai-ingest, expirationSeconds: 3600}
        {{- if .Values.spoke.exporter.stateFiles }}
        - name: kubelet
          hostPath: {path: {{ .Values.spoke.exporter.kubeletDirectory }}, type: Directory}
        {{- end }}
{{- end }}
