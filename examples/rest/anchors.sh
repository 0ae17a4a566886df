#!/usr/bin/env bash
# Lists the batches in which points are anchored, newest first.
. "$(dirname "$0")/common.sh"
sign_in

api GET 'anchors?status=confirmed&page_size=5'
api GET 'anchors?page_size=5'

# A new installation has none.
batch_id=$(field batch_id || true)
if [ -n "$batch_id" ]; then api GET "anchors/batches/$batch_id"; fi
