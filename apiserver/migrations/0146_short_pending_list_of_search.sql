-- A search reads the whole list of entries that are not in the index of texts yet, twice. By default the list grows up to 4 MB, which
-- takes ten times as long to read as the rest of the index. The list is emptied first: nothing can use the index from ALTER INDEX on.
SELECT gin_clean_pending_list('devices_by_text');
ALTER INDEX devices_by_text SET (gin_pending_list_limit = 256);
