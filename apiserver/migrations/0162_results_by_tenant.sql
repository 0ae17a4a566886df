-- The results of each tenant that wait to be anchored, so that those of one, however many cannot be, do not keep the others waiting.
CREATE INDEX ota_results_waiting_by_tenant ON ota_results (tenant_id, result_id) WHERE batch_id IS NULL;
DROP INDEX ota_results_waiting;
