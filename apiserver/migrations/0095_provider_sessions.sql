-- What signing out at a provider for single sign-on needs: the provider, and the ID token of the sign-in, encrypted with a key of
-- the service (platform/sealed-secrets.ts). NULL for other sessions, for those that have ended, and without a usable token.
ALTER TABLE sessions ADD COLUMN sso_provider text, ADD COLUMN sso_id_token text;
-- Kept until the second factor completes the sign-in.
ALTER TABLE pending_sign_ins ADD COLUMN sso_provider text, ADD COLUMN sso_id_token text;
