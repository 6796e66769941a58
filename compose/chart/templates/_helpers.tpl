{{/* Image of a pod: one's own if given, else that of the release. */}}
{{- define "tiercel.image" -}}
{{ .own | default (printf "%s:%s" .root.Values.image.repository (.root.Values.image.tag | default .root.Chart.AppVersion)) }}
{{- end }}

{{/* Labels of a component; call with (dict "root" $ "component" "driver" "topology" "orders"). */}}
{{- define "tiercel.selector" -}}
app.kubernetes.io/name: tiercel
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .topology }}
tiercel/topology: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "tiercel.labels" -}}
{{ include "tiercel.selector" . }}
app.kubernetes.io/part-of: tiercel
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* What each pod has: an ordinary user without rights. */}}
{{- define "tiercel.pod" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "tiercel.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Variables of one server: (dict "server" .Values.redis "prefix" "TIERCEL_REDIS" "value" "redis"). */}}
{{- define "tiercel.server" -}}
{{- $keys := .server.keys }}
{{- if and .server.secret (not .server.keys) (not .server.parts) }}
{{- $keys = dict "address" .prefix }}
{{- end }}
{{- if and $keys (not .server.secret) }}
{{- fail (printf "%s.keys names keys of a Secret: set %s.secret to its name" .value .value) }}
{{- end }}
{{- $places := dict }}
{{- range $part := list "address" "host" "port" "vhost" "database" "user" "password" "tls" }}
{{- if hasKey $keys $part }}{{ $_ := set $places $part true }}
- name: {{ $.prefix }}{{ eq $part "address" | ternary "" (printf "_%s" (upper $part)) }}
  valueFrom: {secretKeyRef: {name: {{ $.server.secret | quote }}, key: {{ get $keys $part | quote }}}}
{{- else if hasKey $.server.parts $part }}{{ $_ := set $places $part true }}
- name: {{ $.prefix }}{{ eq $part "address" | ternary "" (printf "_%s" (upper $part)) }}
  value: {{ get $.server.parts $part | toString | quote }}
{{- end }}
{{- end }}
{{- $whole := hasKey $places "address" }}
{{- if and $whole (or (hasKey $places "host") (hasKey $places "port") (hasKey $places "vhost") (hasKey $places "database") (hasKey $places "tls")) }}
{{- fail (printf "%s: there is a whole address and a part of one: give one of the two" .value) }}
{{- end }}
{{- if not (or $whole (hasKey $places "host") .optional) }}
{{- fail (printf "%s: there is no address: name a Secret in %s.secret, or set %s.parts.host" .value .value .value) }}
{{- end }}
{{- range $files := list "ca" "certificate" }}
{{- with get $.server $files }}{{- if .secret }}
{{- if $whole }}
{{- fail (printf "%s.%s is a part of an address, and there is a whole one: give one of the two" $.value $files) }}
{{- end }}
{{- $folder := printf "/run/tiercel/%s-%s" $files $.value }}
{{- if eq $files "ca" }}
- {name: {{ $.prefix }}_CA, value: {{ $folder }}/{{ .key }}}
{{- else }}
- {name: {{ $.prefix }}_CERT, value: {{ $folder }}/{{ .cert }}}
- {name: {{ $.prefix }}_KEY, value: {{ $folder }}/{{ .key }}}
{{- end }}
{{- end }}{{- end }}
{{- end }}
{{- end }}

{{- define "tiercel.addresses" -}}
{{ include "tiercel.server" (dict "server" .Values.rabbitmq "prefix" "TIERCEL_AMQP" "value" "rabbitmq") }}
{{- include "tiercel.server" (dict "server" .Values.redis "prefix" "TIERCEL_REDIS" "value" "redis") }}
{{- end }}

{{- define "tiercel.settings" -}}
- {name: TIERCEL_LOG, value: json}
- {name: TIERCEL_LOG_LEVEL, value: {{ .Values.logLevel }}}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Files for TLS: the authority that signed a server's certificate, and the client's own certificate. */}}
{{- define "tiercel.tls.mounts" -}}
{{- range $name := list "rabbitmq" "redis" }}{{ range $files := list "ca" "certificate" }}
{{- if (get (get $.Values $name) $files).secret }}
- {name: {{ $files }}-{{ $name }}, mountPath: /run/tiercel/{{ $files }}-{{ $name }}, readOnly: true}
{{- end }}
{{- end }}{{ end }}
{{- end }}

{{- define "tiercel.tls.volumes" -}}
{{- range $name := list "rabbitmq" "redis" }}{{ range $files := list "ca" "certificate" }}
{{- with (get (get $.Values $name) $files).secret }}
- name: {{ $files }}-{{ $name }}
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}{{ end }}
{{- end }}

{{/* Files of a topology: the name of their ConfigMap, if there is one. */}}
{{- define "tiercel.files" -}}
{{- if and .topology.configMap .topology.files }}
{{- fail (printf "topology %s has configMap and files: give one of the two" .topology.name) }}
{{- end }}
{{- if .topology.configMap }}{{ .topology.configMap }}
{{- else if .topology.files }}{{ .root.Release.Name }}-{{ .topology.name }}-files
{{- end }}
{{- end }}

{{/* A value of Spark's configuration. Helm has numbers as fractions, and printf would show a million as 1e+06. */}}
{{- define "tiercel.spark.value" -}}
{{ kindIs "string" . | ternary . (toJson .) }}
{{- end }}

{{- define "tiercel.spark.secret" -}}
{{ .Values.spark.secret | default (printf "%s-spark" .Release.Name) }}
{{- end }}

{{- define "tiercel.spark.master" -}}
{{- if eq .Values.spark.mode "standalone" }}spark://{{ .Release.Name }}-spark-master:7077
{{- else if eq .Values.spark.mode "kubernetes" }}k8s://{{ .Values.spark.master | default "https://kubernetes.default.svc" }}
{{- else }}{{ required "spark.mode is external: set spark.master to the address of your Spark, such as spark://spark:7077" .Values.spark.master }}
{{- end }}
{{- end }}

{{/* A file that a silent loop leaves old: the loop touches it even while Redis or RabbitMQ is away. */}}
{{- define "tiercel.heartbeat" -}}
exec:
  command: [sh, -c, 'test -n "$(find /tmp/heartbeat -newermt "-60 seconds")"']
timeoutSeconds: 10
{{- end }}
