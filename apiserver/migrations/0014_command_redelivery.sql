-- Commands are handed out until the device answers or their time is over: not_before is when a command may be handed out, for the
-- first time or again. 'infinity' holds back what the device is known to have.
CREATE INDEX device_commands_open ON device_commands (tenant_id, device_id, not_before, created_at, correlation_id)
  WHERE status IN ('queued', 'scheduled', 'sent');
CREATE INDEX device_commands_undelivered_of_rollout ON device_commands (tenant_id, rollout_id) WHERE status = 'scheduled';
-- For the sweep, which expires what is open and deletes what ended long ago.
CREATE INDEX device_commands_by_expiry ON device_commands (expires_at) WHERE status IN ('queued', 'scheduled', 'sent');
CREATE INDEX device_commands_by_end ON device_commands (finished_at) WHERE finished_at IS NOT NULL;

-- Updates that were handed out before had no time of their own: those that nobody reported on end by this one.
UPDATE device_commands SET expires_at = now() + interval '7 days' WHERE status = 'sent' AND rollout_id IS NOT NULL;

-- Last, because it alone keeps readers out: device_commands_open serves what this one did.
DROP INDEX device_commands_pending;
