-- Groups of users, which add scopes to those of their members' roles.

-- Trusted for: what members may do. device_group_ids limits the scopes to the devices of these device groups; an empty
-- list does not limit them, so a device group named here cannot be deleted (auth/users/group-store.ts).
CREATE TABLE user_groups (
  tenant_id text NOT NULL REFERENCES tenants,
  group_id uuid NOT NULL,
  name text NOT NULL,
  scopes text[] NOT NULL,
  device_group_ids uuid[] NOT NULL DEFAULT '{}',
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, group_id),
  UNIQUE (tenant_id, name)
);
SELECT kellet_isolate('user_groups');

CREATE TABLE user_group_members (
  tenant_id text NOT NULL,
  group_id uuid NOT NULL,
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  PRIMARY KEY (tenant_id, group_id, user_id),
  FOREIGN KEY (tenant_id, group_id) REFERENCES user_groups ON DELETE CASCADE
);
CREATE INDEX user_group_members_by_user ON user_group_members (user_id);
SELECT kellet_isolate('user_group_members');

-- A user without a role holds the scopes of its groups alone. The check on users that relates tenant_id to role is
-- unaffected by this: a NULL role must not make a platform administrator.
ALTER TABLE users ALTER COLUMN role DROP NOT NULL;
ALTER TABLE users ADD CHECK (role IS NOT NULL OR tenant_id IS NOT NULL);
