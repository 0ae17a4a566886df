-- Whether a package was deprecated, apart from its status: one that is rejected while its key is not trusted is deprecated again
-- once it is.
ALTER TABLE ota_packages ADD COLUMN deprecated boolean NOT NULL DEFAULT false;
UPDATE ota_packages SET deprecated = true WHERE status = 'deprecated';
