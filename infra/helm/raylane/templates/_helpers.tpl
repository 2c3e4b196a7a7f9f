{{- define "raylane.labels" -}}
app.kubernetes.io/name: raylane
app.kubernetes.io/instance: {{ required "cell: missing; render the values from a spec: raylane deploy SPEC --render FOLDER" .Values.cell }}
{{- end -}}
