{{/* Parts that the pods of the gateway and of the migration share. */}}

{{/* Stops the rendering if Secrets are missing. */}}
{{- define "penstock.check" -}}
{{- if .Values.database.existingSecret -}}
{{- if not (or .Values.masterKey.existingSecret (contains "master_key_reference" .Values.config)) -}}
{{- fail "masterKey.existingSecret is needed with database.existingSecret; or set store.master_key_reference in config" -}}
{{- end -}}
{{- if and .Values.migration.enabled (not .Values.adminKey.existingSecret) -}}
{{- fail "adminKey.existingSecret is needed with database.existingSecret: without it the first admin key would be printed to the log of the migration" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "penstock.podSecurityContext" -}}
runAsNonRoot: true
{{- if not .Values.openshift }}
runAsUser: {{ .Values.userId }}
runAsGroup: {{ .Values.userId }}
fsGroup: {{ .Values.userId }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "penstock.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* One environment variable from a Secret: a list of its name and the values of the Secret. */}}
{{- define "penstock.secretEnv" -}}
{{- $secret := index . 1 -}}
{{- if $secret.existingSecret }}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret.existingSecret }}
      key: {{ $secret.key }}
{{- end }}
{{- end }}

{{/* Environment that the gateway and the migration need. */}}
{{- define "penstock.storeEnv" -}}
- name: PENSTOCK_CONFIG
  value: /var/lib/penstock/penstock.toml
{{- include "penstock.secretEnv" (list "PENSTOCK_STORE_URL" .Values.database) }}
{{- include "penstock.secretEnv" (list "PENSTOCK_STORE_MASTER_KEY" .Values.masterKey) }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "penstock.envFrom" -}}
{{- with .Values.environmentSecrets }}
envFrom:
{{- range . }}
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The settings file is in the folder of the volume, because the gateway writes beside it. */}}
{{- define "penstock.volumeMounts" -}}
- name: state
  mountPath: /var/lib/penstock
- name: config
  mountPath: /var/lib/penstock/penstock.toml
  subPath: penstock.toml
  readOnly: true
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
