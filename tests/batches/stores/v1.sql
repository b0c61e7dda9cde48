BEGIN TRANSACTION;
CREATE TABLE batches (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            input_file_id TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            completion_window TEXT NOT NULL,
            window_s INTEGER NOT NULL,
            metadata TEXT,
            output_life_s INTEGER NOT NULL,
            status TEXT NOT NULL,
            created_s INTEGER NOT NULL,
            expires_s INTEGER NOT NULL,
            times TEXT NOT NULL DEFAULT '{}',
            total INTEGER NOT NULL DEFAULT 0,
            completed INTEGER NOT NULL DEFAULT 0,
            failed INTEGER NOT NULL DEFAULT 0,
            problems TEXT NOT NULL DEFAULT '[]',
            output_file_id TEXT NOT NULL UNIQUE,
            error_file_id TEXT NOT NULL UNIQUE,
            has_output INTEGER NOT NULL DEFAULT 0,
            has_errors INTEGER NOT NULL DEFAULT 0
        ) STRICT
        ;
INSERT INTO "batches" VALUES(1,'batch_validating','acme','file-other','/v1/completions','24h',86400,NULL,7200,'validating',1790000000,1790086400,'{}',0,0,0,'[]','file-validating-out','file-validating-err',0,0);
INSERT INTO "batches" VALUES(2,'batch_failed','','file-in','/v1/completions','24h',86400,'{"team": "a", "note": "na\u00efve"}',7200,'failed',1790000001,1790086401,'{"failed":1790000011}',0,0,0,'[{"code": "invalid_json_line", "message": "The line is not JSON.", "line": 3, "param": null}]','file-failed-out','file-failed-err',0,0);
INSERT INTO "batches" VALUES(3,'batch_in_progress','','file-in','/v1/completions','24h',86400,NULL,7200,'in_progress',1790000002,1790086402,'{"in_progress":1790000012}',10,0,0,'[]','file-in_progress-out','file-in_progress-err',0,0);
INSERT INTO "batches" VALUES(4,'batch_finalizing','','file-in','/v1/completions','24h',86400,'{"team": "a", "note": "na\u00efve"}',7200,'finalizing',1790000003,1790086403,'{"in_progress":1790000013,"finalizing":1790000014}',10,0,0,'[]','file-finalizing-out','file-finalizing-err',0,0);
INSERT INTO "batches" VALUES(5,'batch_completed','','file-in','/v1/completions','24h',86400,NULL,7200,'completed',1790000004,1790086404,'{"in_progress":1790000014,"finalizing":1790000015,"completed":1790000050}',10,7,0,'[]','file-completed-out','file-completed-err',1,0);
INSERT INTO "batches" VALUES(6,'batch_expired','','file-in','/v1/completions','24h',86400,'{"team": "a", "note": "na\u00efve"}',7200,'expired',1790000005,1790086405,'{"in_progress":1790000015,"expired":1790000050}',10,7,3,'[]','file-expired-out','file-expired-err',1,1);
INSERT INTO "batches" VALUES(7,'batch_cancelling','','file-in','/v1/completions','24h',86400,NULL,7200,'cancelling',1790000006,1790086406,'{"in_progress":1790000016,"cancelling":1790000017}',10,0,0,'[]','file-cancelling-out','file-cancelling-err',0,0);
INSERT INTO "batches" VALUES(8,'batch_cancelled','','file-in','/v1/completions','24h',86400,'{"team": "a", "note": "na\u00efve"}',7200,'cancelled',1790000007,1790086407,'{"cancelling":1790000017,"cancelled":1790000050}',10,7,0,'[]','file-cancelled-out','file-cancelled-err',1,0);
CREATE TABLE files (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            purpose TEXT NOT NULL,
            filename TEXT NOT NULL,
            size_bytes INTEGER NOT NULL,
            created_s INTEGER NOT NULL,
            expires_s INTEGER
        ) STRICT
        ;
INSERT INTO "files" VALUES(1,'file-in','','batch','reports ä.jsonl',1234,1790000000,1792592000);
INSERT INTO "files" VALUES(2,'file-other','acme','batch','in.jsonl',99,1790000001,NULL);
INSERT INTO "files" VALUES(3,'file-completed-out','','batch_output','batch_completed_output.jsonl',70,1790000050,1790007250);
INSERT INTO "files" VALUES(4,'file-expired-out','','batch_output','batch_expired_output.jsonl',70,1790000050,1790007250);
INSERT INTO "files" VALUES(5,'file-expired-err','','batch_output','batch_expired_error.jsonl',30,1790000050,1790007250);
INSERT INTO "files" VALUES(6,'file-cancelled-out','','batch_output','batch_cancelled_output.jsonl',70,1790000050,1790007250);
CREATE INDEX files_by_tenant ON files (tenant, seq);
CREATE INDEX files_by_expiry ON files (expires_s);
CREATE INDEX batches_by_tenant ON batches (tenant, seq);
CREATE INDEX batches_by_status ON batches (status);
CREATE INDEX batches_by_input ON batches (input_file_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('files',6);
INSERT INTO "sqlite_sequence" VALUES('batches',8);
COMMIT;
PRAGMA application_id = 1212438361;
PRAGMA user_version = 1;
