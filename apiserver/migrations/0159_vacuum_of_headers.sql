-- Headers are only added, one for each block.
ALTER TABLE block_headers SET (autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 1000000);
