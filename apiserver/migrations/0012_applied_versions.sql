-- Trusted for: which version of each custom resource the working copy was written from last. Written in the transaction that
-- writes the working copy (control/applied-versions.ts).
CREATE TABLE applied_versions (
  tenant_id text NOT NULL,
  kind text NOT NULL,
  namespace text NOT NULL,
  name text NOT NULL,
  uid text NOT NULL,
  -- metadata.resourceVersion; NULL when it was no number.
  resource_version numeric,
  -- The resource's deletion has been heard of: no version of this uid is applied any more.
  deleted boolean NOT NULL DEFAULT false,
  applied_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, kind, namespace, name)
);
CREATE INDEX applied_versions_deleted ON applied_versions (applied_at) WHERE deleted;
SELECT kellet_isolate('applied_versions');

-- The same for every kind from now on.
DROP VIEW working_copies;
ALTER TABLE profiles DROP COLUMN resource_uid, DROP COLUMN generation;
ALTER TABLE provisioning_templates DROP COLUMN resource_uid, DROP COLUMN generation;

-- What the operator compares with what it applied (control.proto, ListWorkingCopies): every working copy that has not ended, with
-- a digest of all in it that follows from the manifest. What devices, callers and time change is left out.
CREATE VIEW working_copies AS
  SELECT 'Tenant' AS kind, tenant_id, NULL::uuid AS id, '' AS namespace, tenant_id AS name,
         hashtextextended(ROW (namespace, applied)::text, 0) AS digest
  FROM tenants WHERE deleted_at IS NULL
UNION ALL
  SELECT 'DeviceProfile', tenant_id, profile_id, namespace, resource_name,
         hashtextextended(ROW (name, document)::text, 0)
  FROM profiles WHERE detached_at IS NULL
UNION ALL
  SELECT 'ProvisioningTemplate', tenant_id, template_id, namespace, resource_name,
         hashtextextended(ROW (name, profile_id, hardware_id_pattern, one_time, expires_in_seconds, credential_type,
           default_group_ids, enabled, key_hash,
           EXISTS (SELECT FROM provision_keys k WHERE k.key_hash = t.key_hash AND k.tenant_id = t.tenant_id))::text, 0)
  FROM provisioning_templates t WHERE detached_at IS NULL
UNION ALL
  -- A package that is said to be there must have its artifact.
  SELECT 'OtaPackage', p.tenant_id, package_id, n.namespace, p.name,
         hashtextextended(ROW (display_name, type, version, artifact_uri, sha256, signature, compatibility, release_notes,
           status, EXISTS (SELECT FROM artifacts a WHERE a.tenant_id = p.tenant_id AND a.sha256 = p.sha256))::text, 0)
  FROM ota_packages p JOIN tenants n ON n.tenant_id = p.tenant_id WHERE p.deleted_at IS NULL
UNION ALL
  SELECT 'OtaRollout', tenant_id, rollout_id, namespace, name,
         hashtextextended(ROW (display_name, package_id, profile_id, rollback_package_id, spec)::text, 0)
  FROM ota_rollouts WHERE phase <> 'completed';
