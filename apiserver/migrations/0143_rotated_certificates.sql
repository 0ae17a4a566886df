-- Whether an administrator has replaced the certificate: it works until its period of grace ends, but is not renewed any more.
ALTER TABLE device_certificates ADD COLUMN rotated boolean NOT NULL DEFAULT false;
