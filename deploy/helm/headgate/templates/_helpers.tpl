{{- define "headgate.labels" -}}
app.kubernetes.io/name: headgate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "headgate.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "headgate.pod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
terminationGracePeriodSeconds: 60
volumes:
  - name: config
    configMap:
      name: {{ .Release.Name }}
  {{- if .Values.nodesTlsSecret }}
  - name: tls
    secret:
      secretName: {{ .Values.nodesTlsSecret }}
      defaultMode: 0440
  {{- end }}
{{- end }}

{{- define "headgate.mounts" -}}
- name: config
  mountPath: /etc/headgate
{{- if .Values.nodesTlsSecret }}
- name: tls
  mountPath: /etc/headgate-tls
{{- end }}
{{- end }}

{{- define "headgate.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: 8088}
  periodSeconds: 2
  failureThreshold: 300
livenessProbe:
  httpGet: {path: /healthz, port: 8088}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: 8088}
  periodSeconds: 2
  timeoutSeconds: 5
{{- end }}
