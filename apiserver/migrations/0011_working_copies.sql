-- What the operator compares with what it applied (control.proto, ListWorkingCopies): every working copy that has not ended, with
-- a digest of all in it that follows from the manifest. What devices, callers and time change is left out.
CREATE VIEW working_copies AS
  SELECT 'Tenant' AS kind, tenant_id, NULL::uuid AS id, '' AS namespace, tenant_id AS name,
         hashtextextended(ROW (namespace, applied)::text, 0) AS digest
  FROM tenants WHERE deleted_at IS NULL
UNION ALL
  SELECT 'DeviceProfile', tenant_id, profile_id, namespace, resource_name,
         hashtextextended(ROW (name, document, resource_uid, generation)::text, 0)
  FROM profiles WHERE detached_at IS NULL
UNION ALL
  SELECT 'ProvisioningTemplate', tenant_id, template_id, namespace, resource_name,
         hashtextextended(ROW (name, profile_id, hardware_id_pattern, one_time, expires_in_seconds, credential_type,
           default_group_ids, enabled, key_hash, resource_uid, generation,
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
