-- Counts the devices that hold a package as their own assignment, when the package is deleted. The index it replaces listed what
-- rollouts assigned as well, and no query used it.
CREATE INDEX ota_assignments_own ON ota_assignments (tenant_id, package_id) WHERE slot = 'override';
DROP INDEX ota_assignments_by_package;

-- Why a package was rejected, fit for a condition. It was chosen by searching the message.
ALTER TABLE ota_packages ADD COLUMN rejection text NOT NULL DEFAULT ''
  CHECK (rejection IN ('', 'ChecksumMismatch', 'SignatureInvalid'));
UPDATE ota_packages SET rejection = CASE WHEN checksum_verified AND message LIKE '%signature%' THEN 'SignatureInvalid'
  ELSE 'ChecksumMismatch' END WHERE status = 'rejected';
