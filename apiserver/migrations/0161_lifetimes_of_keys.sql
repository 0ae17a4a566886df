-- Where it is not known how long a key was made for, its end tells. "For ever" must not be what a process says that does not know of
-- the column, which runs beside newer ones during an upgrade.
ALTER TABLE api_keys ALTER COLUMN lifetime_seconds DROP DEFAULT, ALTER COLUMN lifetime_seconds DROP NOT NULL;
