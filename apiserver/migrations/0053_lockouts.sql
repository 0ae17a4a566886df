-- Whose sign-ins are delayed, for administrators: only of pairs whose e-mail address has an account, so that what people
-- type by mistake is not stored.
ALTER TABLE login_failures
  ADD COLUMN email text,
  ADD COLUMN address text,
  -- The tenants whose accounts were tried; an empty text stands for the platform's. Who clears a count must hold all of
  -- them: an administrator of one tenant must not help to guess passwords of another.
  ADD COLUMN tenant_ids text[] NOT NULL DEFAULT '{}';
CREATE INDEX login_failures_by_email ON login_failures (email, address) WHERE email IS NOT NULL;
CREATE INDEX login_failures_by_tenant ON login_failures USING gin (tenant_ids) WHERE email IS NOT NULL;
