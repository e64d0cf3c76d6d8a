CREATE TABLE IF NOT EXISTS repositories (
    id TEXT PRIMARY KEY, storage_namespace TEXT NOT NULL, default_branch TEXT NOT NULL,
    creation_date INTEGER NOT NULL, read_only INTEGER NOT NULL, metadata TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS branches (
    repository TEXT, id TEXT, commit_id TEXT NOT NULL, staging_token TEXT NOT NULL, hidden INTEGER NOT NULL,
    PRIMARY KEY (repository, id)
);
CREATE TABLE IF NOT EXISTS tags (
    repository TEXT, id TEXT, commit_id TEXT NOT NULL, PRIMARY KEY (repository, id)
);
CREATE TABLE IF NOT EXISTS commits (
    repository TEXT, id TEXT, committer TEXT NOT NULL, message TEXT NOT NULL, metarange_id TEXT NOT NULL,
    creation_date INTEGER NOT NULL, metadata TEXT NOT NULL, parents TEXT NOT NULL,
    version INTEGER NOT NULL, generation INTEGER NOT NULL,
    PRIMARY KEY (repository, id)
);
CREATE TABLE IF NOT EXISTS staged (
    token TEXT, path BLOB, identity BLOB, data BLOB, PRIMARY KEY (token, path)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS range_records (
    range_id TEXT, path BLOB, identity BLOB NOT NULL, data BLOB NOT NULL, PRIMARY KEY (range_id, path)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metaranges (
    id TEXT, position INTEGER, range_id TEXT NOT NULL, min_path BLOB NOT NULL, max_path BLOB NOT NULL,
    PRIMARY KEY (id, position)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (
    storage_namespace TEXT, id TEXT, PRIMARY KEY (storage_namespace, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS retention_rules (
    repository TEXT PRIMARY KEY, default_days INTEGER NOT NULL, branches TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS protected_branches (
    repository TEXT, pattern TEXT, PRIMARY KEY (repository, pattern)
);
CREATE TABLE IF NOT EXISTS issued_addresses (
    repository TEXT, address TEXT, issued_at INTEGER NOT NULL, PRIMARY KEY (repository, address)
);
CREATE TABLE IF NOT EXISTS copies (
    repository TEXT, address TEXT NOT NULL, copied_at INTEGER NOT NULL
);
