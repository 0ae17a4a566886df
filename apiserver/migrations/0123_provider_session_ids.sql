-- Which session at a provider for single sign-on (the claim sid of the ID token) a session here began in: logout tokens may name
-- it alone. NULL if the provider names none, and for sessions from before.
ALTER TABLE sessions ADD COLUMN sso_sid text;
ALTER TABLE pending_sign_ins ADD COLUMN sso_sid text;
