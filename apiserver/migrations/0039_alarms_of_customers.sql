-- The customer of an alarm's device when it was raised, or now if it is open; for the lists of the customer's users, who
-- besides see only alarms of devices that are still their customer's.
ALTER TABLE alarms ADD COLUMN customer_id uuid;
CREATE INDEX alarms_by_customer ON alarms (tenant_id, customer_id, alarm_id) WHERE customer_id IS NOT NULL;
