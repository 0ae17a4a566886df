-- Foreign keys to users name the tenant, so that no row of one tenant can refer to a user of another. Rows of platform
-- administrators have no tenant, which a key of two columns does not check: they keep the key by user_id as well.
ALTER TABLE users ADD CONSTRAINT users_of_tenants UNIQUE (tenant_id, user_id);
-- On the same columns.
DROP INDEX users_by_tenant;

ALTER TABLE sso_identities
  DROP CONSTRAINT sso_identities_user_id_fkey,
  ADD FOREIGN KEY (tenant_id, user_id) REFERENCES users (tenant_id, user_id) ON DELETE CASCADE;
ALTER TABLE user_group_members
  DROP CONSTRAINT user_group_members_user_id_fkey,
  ADD FOREIGN KEY (tenant_id, user_id) REFERENCES users (tenant_id, user_id) ON DELETE CASCADE;

ALTER TABLE sessions
  ADD FOREIGN KEY (tenant_id, user_id) REFERENCES users (tenant_id, user_id) ON DELETE CASCADE;
ALTER TABLE second_factors
  ADD FOREIGN KEY (tenant_id, user_id) REFERENCES users (tenant_id, user_id) ON DELETE CASCADE;
ALTER TABLE webauthn_credentials
  ADD FOREIGN KEY (tenant_id, user_id) REFERENCES users (tenant_id, user_id) ON DELETE CASCADE;
ALTER TABLE recovery_codes
  ADD FOREIGN KEY (tenant_id, user_id) REFERENCES users (tenant_id, user_id) ON DELETE CASCADE;
ALTER TABLE pending_sign_ins
  ADD FOREIGN KEY (tenant_id, user_id) REFERENCES users (tenant_id, user_id) ON DELETE CASCADE;
