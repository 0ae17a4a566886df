-- Refused attempts are recorded after the fact, so one could be recorded for a tenant whose purge has begun, and leave a row
-- behind. Such records are dropped. For a deleted tenant, the purge waits for the transaction that records.
CREATE FUNCTION drop_audit_of_purged_tenant() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM FROM tenants WHERE tenant_id = NEW.tenant_id AND deleted_at IS NOT NULL;
  IF FOUND THEN
    PERFORM FROM tenants WHERE tenant_id = NEW.tenant_id FOR SHARE;
    IF EXISTS (SELECT FROM tenants WHERE tenant_id = NEW.tenant_id AND purge_started_at IS NOT NULL) THEN
      RETURN NULL;
    END IF;
  END IF;
  RETURN NEW;
END
$$;
CREATE TRIGGER audit_pending_of_purged_tenants BEFORE INSERT ON audit_pending
  FOR EACH ROW EXECUTE FUNCTION drop_audit_of_purged_tenant();
