-- Packages, artifacts, rollouts, assignments and commands.

-- A package's id is bound to its checksum for life: a deleted package's row stays, and the same name with another artifact
-- is refused.
CREATE TABLE ota_packages (
  tenant_id text NOT NULL,
  package_id uuid NOT NULL,
  -- Name of the custom resource, and the name people gave.
  name text NOT NULL,
  display_name text NOT NULL,
  type text NOT NULL CHECK (type IN ('fw', 'sw')),
  version text NOT NULL,
  artifact_uri text NOT NULL,
  sha256 bytea NOT NULL CHECK (length(sha256) = 32),
  signature text NOT NULL,
  size_bytes int8 NOT NULL,
  -- kellet.v1.Compatibility as JSON.
  compatibility jsonb NOT NULL DEFAULT '{}',
  release_notes text NOT NULL DEFAULT '',
  status text NOT NULL CHECK (status IN ('uploading', 'available', 'rejected', 'deprecated')),
  checksum_verified boolean NOT NULL DEFAULT false,
  signature_verified boolean NOT NULL DEFAULT false,
  -- Why it was rejected, or what the last failed fetch said.
  message text NOT NULL DEFAULT '',
  fetch_attempts int4 NOT NULL DEFAULT 0,
  fetch_failed_at timestamptz,
  deleted_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, package_id)
);
CREATE INDEX ota_packages_by_age ON ota_packages (tenant_id, created_at, package_id);
SELECT kellet_isolate('ota_packages');

-- The content store: bytes by checksum, in chunks of 64 KiB. Trusted for: what is here was compared with its checksum as a
-- whole before the transaction that wrote it committed.
CREATE TABLE artifacts (
  tenant_id text NOT NULL,
  sha256 bytea NOT NULL,
  size_bytes int8 NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, sha256)
);
SELECT kellet_isolate('artifacts');
CREATE TABLE artifact_chunks (
  tenant_id text NOT NULL,
  sha256 bytea NOT NULL,
  chunk_index int4 NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (tenant_id, sha256, chunk_index),
  FOREIGN KEY (tenant_id, sha256) REFERENCES artifacts ON DELETE CASCADE
);
ALTER TABLE artifact_chunks ALTER COLUMN data SET STORAGE EXTERNAL;
SELECT kellet_isolate('artifact_chunks');

-- Trusted for: everything a rollout was told and has done. The pause is decided here, in the transaction of the report that
-- crosses the threshold; the operator reads it and drives the rest.
CREATE TABLE ota_rollouts (
  tenant_id text NOT NULL,
  rollout_id uuid NOT NULL,
  -- Name and namespace of the custom resource, for the operator's keys.
  name text NOT NULL,
  namespace text NOT NULL,
  display_name text NOT NULL,
  package_id uuid NOT NULL,
  profile_id uuid NOT NULL,
  rollback_package_id uuid,
  -- The manifest (kellet.control.v1.OtaRolloutSpec as JSON). Policy may change, identity may not.
  spec jsonb NOT NULL,
  phase text NOT NULL CHECK (phase IN ('active', 'paused', 'rolling_back', 'completed')),
  outcome text NOT NULL DEFAULT '' CHECK (outcome IN ('', 'succeeded', 'rolled_back', 'cancelled')),
  -- [{reason, start_time, by}]
  pause_conditions jsonb NOT NULL DEFAULT '[]',
  expanded_to_percent int4 NOT NULL DEFAULT 0,
  -- What was known when somebody resumed: only what came after counts towards the next pause.
  acknowledged_failures int4 NOT NULL DEFAULT 0,
  acknowledged_scheduled int4 NOT NULL DEFAULT 0,
  rollback_requested_at timestamptz,
  rollback_requested_by text NOT NULL DEFAULT '',
  -- Index of the last step begun, -1 in the canary stage, and of the last step approved.
  step_index int4 NOT NULL DEFAULT -1,
  approved_step_index int4 NOT NULL DEFAULT -1,
  eligible int4 NOT NULL DEFAULT 0,
  -- In the stage with which the rollout began, and in all so far.
  scheduled_initially int4 NOT NULL DEFAULT 0,
  scheduled int4 NOT NULL DEFAULT 0,
  sent int4 NOT NULL DEFAULT 0,
  succeeded int4 NOT NULL DEFAULT 0,
  failed int4 NOT NULL DEFAULT 0,
  timed_out int4 NOT NULL DEFAULT 0,
  skipped int4 NOT NULL DEFAULT 0,
  removed int4 NOT NULL DEFAULT 0,
  -- The current stage alone (since the last expansion).
  stage_scheduled int4 NOT NULL DEFAULT 0,
  stage_failed int4 NOT NULL DEFAULT 0,
  last_terminal_at timestamptz,
  -- With max_per_minute: when the next command may leave.
  next_send_at timestamptz,
  revision int8 NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, rollout_id)
);
CREATE INDEX ota_rollouts_by_age ON ota_rollouts (tenant_id, created_at, rollout_id);
CREATE INDEX ota_rollouts_running ON ota_rollouts (tenant_id, profile_id) WHERE phase <> 'completed';
SELECT kellet_isolate('ota_rollouts');

CREATE TABLE ota_rollout_devices (
  tenant_id text NOT NULL,
  rollout_id uuid NOT NULL,
  device_id uuid NOT NULL,
  state text NOT NULL CHECK (state IN
    ('scheduled', 'sent', 'downloading', 'successful', 'failure', 'timed_out', 'skipped', 'rolled_back')),
  -- The update itself until a rollback begins; then the way back.
  rolling_back boolean NOT NULL DEFAULT false,
  -- The stage in which it was scheduled, named by the percentage it covers.
  stage_percent int4 NOT NULL,
  attempts int4 NOT NULL DEFAULT 0,
  deadline_at timestamptz,
  firmware_version text NOT NULL DEFAULT '',
  progress_percent int4,
  error text NOT NULL DEFAULT '',
  correlation_id uuid,
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, rollout_id, device_id),
  FOREIGN KEY (tenant_id, rollout_id) REFERENCES ota_rollouts ON DELETE CASCADE
);
CREATE INDEX ota_rollout_devices_by_deadline ON ota_rollout_devices (tenant_id, rollout_id, deadline_at)
  WHERE deadline_at IS NOT NULL;
CREATE INDEX ota_rollout_devices_by_device ON ota_rollout_devices (tenant_id, device_id);
SELECT kellet_isolate('ota_rollout_devices');

-- What each device should run. rollout_id is null for a device-level override, which wins.
CREATE TABLE ota_assignments (
  tenant_id text NOT NULL,
  device_id uuid NOT NULL,
  -- 'override', or the package's type for what a rollout assigned.
  slot text NOT NULL CHECK (slot IN ('override', 'fw', 'sw')),
  package_id uuid NOT NULL,
  rollout_id uuid,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, device_id, slot)
);
CREATE INDEX ota_assignments_by_package ON ota_assignments (tenant_id, package_id);
SELECT kellet_isolate('ota_assignments');

-- Commands to devices. Trusted for: what was sent and what the device said.
CREATE TABLE device_commands (
  tenant_id text NOT NULL,
  correlation_id uuid PRIMARY KEY,
  device_id uuid NOT NULL,
  method text NOT NULL,
  params jsonb NOT NULL DEFAULT '{}',
  status text NOT NULL CHECK (status IN
    ('queued', 'scheduled', 'sent', 'successful', 'failure', 'expired', 'cancelled')),
  response jsonb,
  error text NOT NULL DEFAULT '',
  persistent boolean NOT NULL,
  -- The rollout that sent it; its pause and window hold the command back.
  rollout_id uuid,
  attempts int4 NOT NULL DEFAULT 0,
  idempotency_key text,
  not_before timestamptz NOT NULL DEFAULT now(),
  created_at timestamptz NOT NULL DEFAULT now(),
  sent_at timestamptz,
  finished_at timestamptz,
  expires_at timestamptz NOT NULL
);
CREATE INDEX device_commands_pending ON device_commands (tenant_id, device_id, created_at)
  WHERE status IN ('queued', 'scheduled');
CREATE INDEX device_commands_by_device ON device_commands (tenant_id, device_id, created_at, correlation_id);
CREATE UNIQUE INDEX device_commands_idempotency ON device_commands (tenant_id, device_id, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
SELECT kellet_isolate('device_commands');
