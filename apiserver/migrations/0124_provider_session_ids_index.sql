-- without a transaction
CREATE INDEX CONCURRENTLY IF NOT EXISTS sessions_by_provider_session ON sessions (tenant_id, sso_provider, sso_sid)
  WHERE sso_sid IS NOT NULL AND revoked_at IS NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS pending_sign_ins_by_provider_session ON pending_sign_ins (tenant_id, sso_provider, sso_sid)
  WHERE sso_sid IS NOT NULL;
