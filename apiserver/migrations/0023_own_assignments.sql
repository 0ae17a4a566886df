-- Counts the devices that hold a package as their own assignment, when the package is deleted. The index it replaces listed what
-- rollouts assigned as well, and no query used it.
CREATE INDEX ota_assignments_own ON ota_assignments (tenant_id, package_id) WHERE slot = 'override';
DROP INDEX ota_assignments_by_package;
