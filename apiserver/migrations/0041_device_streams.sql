-- Streams of devices (DeviceLinkService.Connect): a device has one, and the newest counts.

-- Raised whenever the device opens a stream, in any process: streams with a lower epoch end.
ALTER TABLE devices ADD COLUMN stream_epoch int8 NOT NULL DEFAULT 0;
