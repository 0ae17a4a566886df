-- When the provider's settings that a sign-in was judged by were made: one that waits for its second factor ends when they change.
-- NULL for sign-ins without a provider, and those that an earlier release has begun.
ALTER TABLE pending_sign_ins ADD COLUMN sso_updated_at timestamptz;
