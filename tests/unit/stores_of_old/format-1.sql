BEGIN TRANSACTION;
CREATE TABLE changes (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job INTEGER NOT NULL, 
	task INTEGER NOT NULL, 
	time DOUBLE NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	exit_code INTEGER, 
	reason TEXT NOT NULL, 
	restarts INTEGER NOT NULL, 
	FOREIGN KEY(job) REFERENCES jobs (number)
);
INSERT INTO "changes" VALUES(1,1,0,1.79543425856367325783e+09,'SUBMITTING',NULL,'',0);
INSERT INTO "changes" VALUES(2,1,0,1.79543425860730409627e+09,'PENDING',NULL,'',0);
INSERT INTO "changes" VALUES(3,2,0,1.79543425862424039845e+09,'SUBMITTING',NULL,'',0);
INSERT INTO "changes" VALUES(4,2,0,1.79543425864758491522e+09,'PENDING',NULL,'',0);
INSERT INTO "changes" VALUES(5,3,0,1.79543425867167472835e+09,'SUBMITTING',NULL,'',0);
INSERT INTO "changes" VALUES(6,3,0,1.79543425869959783554e+09,'PENDING',NULL,'',0);
INSERT INTO "changes" VALUES(7,4,0,1.79543425872151541713e+09,'SUBMITTING',NULL,'',0);
INSERT INTO "changes" VALUES(8,4,0,1.79543425874757480624e+09,'PENDING',NULL,'',0);
INSERT INTO "changes" VALUES(9,1,0,1.79543425877559185022e+09,'RUNNING',NULL,'',0);
INSERT INTO "changes" VALUES(10,2,0,1.79543425877559185022e+09,'COMPLETED',0,'',0);
CREATE TABLE jobs (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	token VARCHAR(16) NOT NULL, 
	launcher VARCHAR(32) NOT NULL, 
	place VARCHAR(255) NOT NULL, 
	site VARCHAR(255) NOT NULL, 
	external VARCHAR(1024), 
	label VARCHAR(64) NOT NULL, 
	name TEXT NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	spec TEXT NOT NULL, 
	folder TEXT NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	submitter VARCHAR(512) NOT NULL, 
	submitted DOUBLE NOT NULL, 
	changed DOUBLE NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	revision INTEGER NOT NULL, 
	UNIQUE (token)
);
INSERT INTO "jobs" VALUES(1,'0000000000000000','slurm','c1','here','4711','4711','running','train','{"after": [], "at_once": null, "binds": [], "environment": {}, "folder": "/study", "global_batch": null, "grace_s": 120, "image": null, "kind": "train", "name": "running", "outlives": false, "parallel": true, "readonly": [], "requeues": 3, "resources": {"cpus_per_rank": 1, "gpus_per_node": 0, "least_nodes": null, "memory_mib": null, "minutes": null, "nodes": 1, "ranks_per_node": 1}, "shrink": false, "tasks": [["cingulum", "train", "runs/.submitted-0/running-0123456789ab.yaml", "--resume"]]}','/jobs/0000000000000000','me','n1/boot/4026531836 16851 143830',1.79543425856367325783e+09,1.79543425877559185022e+09,'RUNNING',2);
INSERT INTO "jobs" VALUES(2,'0000000000000001','slurm','c1','here','4712','4712','ended','train','{"after": [], "at_once": null, "binds": [], "environment": {}, "folder": "/study", "global_batch": null, "grace_s": 120, "image": null, "kind": "train", "name": "ended", "outlives": false, "parallel": true, "readonly": [], "requeues": 3, "resources": {"cpus_per_rank": 1, "gpus_per_node": 0, "least_nodes": null, "memory_mib": null, "minutes": null, "nodes": 1, "ranks_per_node": 1}, "shrink": false, "tasks": [["cingulum", "train", "runs/.submitted-0/ended-0123456789ab.yaml", "--resume"]]}','/jobs/0000000000000001','me','n1/boot/4026531836 16851 143830',1.79543425862424039845e+09,1.79543425877559185022e+09,'COMPLETED',2);
INSERT INTO "jobs" VALUES(3,'0000000000000002','slurm','c1','here','4713','4713','folds-of-mine','crossval','{"after": [], "at_once": null, "binds": [], "environment": {}, "folder": "/study", "global_batch": null, "grace_s": 120, "image": null, "kind": "crossval", "name": "folds-of-mine", "outlives": false, "parallel": true, "readonly": [], "requeues": 3, "resources": {"cpus_per_rank": 1, "gpus_per_node": 0, "least_nodes": null, "memory_mib": null, "minutes": null, "nodes": 1, "ranks_per_node": 1}, "shrink": false, "tasks": [["cingulum", "crossval", "/other/runs/.submitted-0/folds-of-mine-0123456789ab.yaml", "--resume"]]}','/jobs/0000000000000002','me','n1/boot/4026531836 16851 143830',1.79543425867167472835e+09,1.79543425869959783554e+09,'PENDING',1);
INSERT INTO "jobs" VALUES(4,'0000000000000003','slurm','c1','here','4714','4714','by-hand','train','{"after": [], "at_once": null, "binds": [], "environment": {}, "folder": "/study", "global_batch": null, "grace_s": 120, "image": null, "kind": "train", "name": "by-hand", "outlives": false, "parallel": true, "readonly": [], "requeues": 3, "resources": {"cpus_per_rank": 1, "gpus_per_node": 0, "least_nodes": null, "memory_mib": null, "minutes": null, "nodes": 1, "ranks_per_node": 1}, "shrink": false, "tasks": [["cingulum", "train", "my.yaml", "--resume"]]}','/jobs/0000000000000003','me','n1/boot/4026531836 16851 143830',1.79543425872151541713e+09,1.79543425874757480624e+09,'PENDING',1);
CREATE TABLE schema_version (
	version INTEGER NOT NULL
);
INSERT INTO "schema_version" VALUES(1);
CREATE TABLE tasks (
	job INTEGER NOT NULL, 
	task INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	exit_code INTEGER, 
	reason TEXT NOT NULL, 
	hosts TEXT NOT NULL, 
	restarts INTEGER NOT NULL, 
	started DOUBLE, 
	ended DOUBLE, 
	missing_since DOUBLE, 
	PRIMARY KEY (job, task), 
	FOREIGN KEY(job) REFERENCES jobs (number)
);
INSERT INTO "tasks" VALUES(1,0,'RUNNING',NULL,'','["n1"]',0,5.0,NULL,NULL);
INSERT INTO "tasks" VALUES(2,0,'COMPLETED',0,'','[]',0,NULL,9.0,NULL);
INSERT INTO "tasks" VALUES(3,0,'PENDING',NULL,'','[]',0,NULL,NULL,NULL);
INSERT INTO "tasks" VALUES(4,0,'PENDING',NULL,'','[]',0,NULL,NULL,NULL);
CREATE INDEX ix_jobs_changed ON jobs (changed);
CREATE INDEX ix_jobs_state ON jobs (state);
CREATE INDEX ix_jobs_label ON jobs (label);
CREATE INDEX ix_changes_job ON changes (job);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',4);
INSERT INTO "sqlite_sequence" VALUES('changes',10);
COMMIT;
