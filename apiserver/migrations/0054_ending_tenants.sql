-- A suspended tenant keeps everything, and everything of it is refused.
ALTER TABLE tenants ADD COLUMN suspended_at timestamptz;
