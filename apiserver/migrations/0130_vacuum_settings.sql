-- Every table that grows says when autovacuum runs: by default it waits until a fifth of a table is dead or new.

-- Tables whose rows come and go or are updated.
ALTER TABLE alarms SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE device_attributes SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE device_group_members SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE device_chain SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE mqtt_sessions SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE ota_assignments SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE ota_rollout_cohort SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE proven_leaves SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE provisioning_claims SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE refresh_tokens SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE resource_intents SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE rule_actions SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE rule_last_points SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE rule_states SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE telemetry_usage SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE api_keys SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE audit_anchors SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE cold_files SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE login_failures SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE provision_keys SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE telemetry_segments SET (autovacuum_vacuum_scale_factor = 0.02);

-- Tables whose rows are hardly changed after a while. They are vacuumed for what is inserted, which freezes the older rows: otherwise
-- nothing freezes these until all of the table is read at once, to keep transaction ids from running out.
ALTER TABLE anchor_batches SET (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 1000000);
ALTER TABLE audit_events SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 1000000);
ALTER TABLE chain_transactions SET (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 1000000);
ALTER TABLE device_commands SET (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 1000000);
ALTER TABLE device_history SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 1000000);
ALTER TABLE ota_results SET (autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 1000000);
ALTER TABLE ota_rollout_devices SET (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 1000000);
ALTER TABLE wallet_outputs SET (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 1000000);
