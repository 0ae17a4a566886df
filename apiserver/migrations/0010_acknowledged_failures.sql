-- Which failures a resume has acknowledged, device by device: when such a device is tried again, skipped or deleted, it must
-- not be taken for one of the failures that came after.
ALTER TABLE ota_rollout_devices ADD COLUMN acknowledged boolean NOT NULL DEFAULT false;
