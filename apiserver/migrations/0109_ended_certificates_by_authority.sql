-- without a transaction
-- For lists of revoked certificates.
CREATE INDEX CONCURRENTLY IF NOT EXISTS device_certificates_ended ON device_certificates (tenant_id, authority_id, key_id)
  INCLUDE (serial_number, ended_at, not_after) WHERE ended_at IS NOT NULL;
