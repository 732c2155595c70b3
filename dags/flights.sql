-- The owner's script: three private tables from the public file of 2013's flights.
-- A flight is late when it arrives more than fifteen minutes after its time. From April on, even weeks are the holdout and
-- odd weeks are for training. The daily releases stay before April, so that no other release reads the holdout's rows.
-- The noise columns are functions of the row number alone: they predict nothing, which is their purpose.
CREATE TEMP TABLE numbered AS
SELECT row_number() OVER () AS id, make_date(year, month, day) AS day, * EXCLUDE (year, day) FROM raw_flights;

CREATE TABLE flights AS
SELECT day, tailnum, carrier, dest, origin, dep_delay, arr_delay, air_time, distance FROM numbered ORDER BY day;

CREATE TEMP TABLE labelled AS
SELECT
    tailnum, week(day) AS week_of_year, CAST(arr_delay > 15 AS INTEGER) AS late,
    dep_delay, CAST(dep_delay > 0 AS INTEGER) AS departed_late, hour, month, distance, weekday(day) AS weekday, CAST(origin = 'JFK' AS INTEGER) AS from_jfk,
    CAST(carrier IN ('EV', 'MQ', '9E') AS INTEGER) AS regional,
    (hash(id * 64 + 0) % 1000000) / 1e6 AS noise_00, (hash(id * 64 + 1) % 1000000) / 1e6 AS noise_01,
    (hash(id * 64 + 2) % 1000000) / 1e6 AS noise_02, (hash(id * 64 + 3) % 1000000) / 1e6 AS noise_03,
    (hash(id * 64 + 4) % 1000000) / 1e6 AS noise_04, (hash(id * 64 + 5) % 1000000) / 1e6 AS noise_05,
    (hash(id * 64 + 6) % 1000000) / 1e6 AS noise_06, (hash(id * 64 + 7) % 1000000) / 1e6 AS noise_07,
    (hash(id * 64 + 8) % 1000000) / 1e6 AS noise_08, (hash(id * 64 + 9) % 1000000) / 1e6 AS noise_09,
    (hash(id * 64 + 10) % 1000000) / 1e6 AS noise_10, (hash(id * 64 + 11) % 1000000) / 1e6 AS noise_11,
    (hash(id * 64 + 12) % 1000000) / 1e6 AS noise_12, (hash(id * 64 + 13) % 1000000) / 1e6 AS noise_13,
    (hash(id * 64 + 14) % 1000000) / 1e6 AS noise_14, (hash(id * 64 + 15) % 1000000) / 1e6 AS noise_15,
    (hash(id * 64 + 16) % 1000000) / 1e6 AS noise_16, (hash(id * 64 + 17) % 1000000) / 1e6 AS noise_17,
    (hash(id * 64 + 18) % 1000000) / 1e6 AS noise_18, (hash(id * 64 + 19) % 1000000) / 1e6 AS noise_19,
    (hash(id * 64 + 20) % 1000000) / 1e6 AS noise_20, (hash(id * 64 + 21) % 1000000) / 1e6 AS noise_21,
    (hash(id * 64 + 22) % 1000000) / 1e6 AS noise_22, (hash(id * 64 + 23) % 1000000) / 1e6 AS noise_23,
    (hash(id * 64 + 24) % 1000000) / 1e6 AS noise_24, (hash(id * 64 + 25) % 1000000) / 1e6 AS noise_25,
    (hash(id * 64 + 26) % 1000000) / 1e6 AS noise_26, (hash(id * 64 + 27) % 1000000) / 1e6 AS noise_27,
    (hash(id * 64 + 28) % 1000000) / 1e6 AS noise_28, (hash(id * 64 + 29) % 1000000) / 1e6 AS noise_29,
    (hash(id * 64 + 30) % 1000000) / 1e6 AS noise_30, (hash(id * 64 + 31) % 1000000) / 1e6 AS noise_31,
    (hash(id * 64 + 32) % 1000000) / 1e6 AS noise_32, (hash(id * 64 + 33) % 1000000) / 1e6 AS noise_33,
    (hash(id * 64 + 34) % 1000000) / 1e6 AS noise_34, (hash(id * 64 + 35) % 1000000) / 1e6 AS noise_35,
    (hash(id * 64 + 36) % 1000000) / 1e6 AS noise_36, (hash(id * 64 + 37) % 1000000) / 1e6 AS noise_37,
    (hash(id * 64 + 38) % 1000000) / 1e6 AS noise_38, (hash(id * 64 + 39) % 1000000) / 1e6 AS noise_39
FROM numbered WHERE arr_delay IS NOT NULL AND tailnum IS NOT NULL AND month >= 4;

CREATE TABLE flights_training AS
SELECT * FROM labelled WHERE week_of_year % 2 = 1;

CREATE TABLE flights_holdout AS
SELECT * FROM labelled WHERE week_of_year % 2 = 0;
