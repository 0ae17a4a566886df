-- without a transaction
-- A user's sessions that have not been ended, of which the oldest end when there are too many.
CREATE INDEX CONCURRENTLY IF NOT EXISTS sessions_in_force_by_user ON sessions (user_id, session_id) WHERE revoked_at IS NULL;
-- Those that were ended, which are deleted soon.
CREATE INDEX CONCURRENTLY IF NOT EXISTS sessions_by_revocation ON sessions (revoked_at) WHERE revoked_at IS NOT NULL;
