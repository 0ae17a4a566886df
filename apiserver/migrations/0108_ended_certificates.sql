-- Since when a certificate is refused, or will be, although it has not expired by itself; NULL if it may be used until then. Kept by
-- what ends its key, so that lists of revoked certificates need no look at the keys.
ALTER TABLE device_certificates ADD COLUMN ended_at timestamptz;

CREATE FUNCTION end_certificate() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE device_certificates SET ended_at = least(NEW.revoked_at, NEW.expires_at)
  WHERE tenant_id = NEW.tenant_id AND key_id = NEW.key_id AND not_after > least(NEW.revoked_at, NEW.expires_at);
  RETURN NULL;
END
$$;
CREATE TRIGGER api_keys_end_certificates AFTER UPDATE OF revoked_at, expires_at ON api_keys
  FOR EACH ROW WHEN (NEW.credential_type = 'certificate') EXECUTE FUNCTION end_certificate();
