#!/bin/sh
# Copies the custom resource definitions into the chart, because Helm reads only files inside it, and generates Argo CD's
# settings from the health check, one per kind as Argo CD requires.
set -eu
cd "$(dirname "$0")"
rm -rf files/crds
mkdir -p files/crds
cp ../../crds/*.yaml files/crds/

{
  echo '# Generated from health.lua by generate.sh. Merge it into the settings of Argo CD: see docs/gitops.md.'
  echo 'apiVersion: v1'
  echo 'kind: ConfigMap'
  echo 'metadata:'
  echo '  name: argocd-cm'
  echo 'data:'
  for definition in ../../crds/*.yaml; do
    kind=$(sed -n 's/^    kind: //p' "$definition")
    echo "  resource.customizations.health.kellet.dev_$kind: |"
    sed 's/^\(.\)/    \1/' argocd/health.lua
  done
} >argocd/argocd-cm.yaml
