-- Earlier releases left alarms of deleted devices open.
UPDATE alarms a SET status = 'cleared', cleared_at = d.deleted_at FROM devices d
WHERE a.status <> 'cleared' AND d.tenant_id = a.tenant_id AND d.device_id = a.device_id AND d.deleted_at IS NOT NULL;
