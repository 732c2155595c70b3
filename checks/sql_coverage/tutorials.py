"""What the tutorials of PipelineDP and of Tumult Analytics compute, as SQL in our own words."""

from __future__ import annotations

#: Tables of both, with types of columns.
TABLES = {
    "visits": {
        "visitor_id": "BIGINT",
        "weekday": "INTEGER",
        "entered": "TIMESTAMP",
        "minutes": "INTEGER",
        "spent": "DOUBLE",
    },
    "ratings": {"user_id": "BIGINT", "movie_id": "INTEGER", "rating": "INTEGER"},
    "members": {
        "id": "BIGINT",
        "age": "INTEGER",
        "gender": "VARCHAR",
        "education_level": "VARCHAR",
        "zip_code": "VARCHAR",
        "books_borrowed": "INTEGER",
        "favorite_genres": "VARCHAR",
        "date_joined": "DATE",
    },
    "checkouts": {
        "member_id": "BIGINT",
        "checkout_date": "DATE",
        "isbn": "VARCHAR",
        "genre": "VARCHAR",
        "publication_date": "INTEGER",
    },
    "zip_cities": {"zip_code": "VARCHAR", "city": "VARCHAR"},
}
#: Whose rows are protected, by table.
UNITS = {
    "visits": "visitor_id",
    "ratings": "user_id",
    "members": "id",
    "checkouts": "member_id",
}
PIPELINE_DP = {
    "visits by weekday": "SELECT weekday, COUNT(*) AS n FROM visits GROUP BY weekday",
    "visitors by weekday": (
        "SELECT weekday, COUNT(DISTINCT visitor_id) AS n FROM visits GROUP BY weekday"
    ),
    "money by weekday": "SELECT weekday, SUM(spent) AS s FROM visits GROUP BY weekday",
    "mean minutes by weekday": "SELECT weekday, AVG(minutes) AS m FROM visits GROUP BY weekday",
    "variance by weekday": "SELECT weekday, VAR_POP(spent) AS v FROM visits GROUP BY weekday",
    "several metrics": (
        "SELECT weekday, COUNT(*) AS n, COUNT(DISTINCT visitor_id) AS u, SUM(spent) "
        "AS s, AVG(spent) AS m FROM visits GROUP BY weekday"
    ),
    "percentiles": "SELECT quantile_cont(spent, 0.9) AS p FROM visits",
    "long visits": (
        "SELECT weekday, COUNT(*) AS n FROM visits WHERE minutes > 30 GROUP BY weekday"
    ),
    "ratings by movie": (
        "SELECT movie_id, COUNT(*) AS n, AVG(rating) AS m FROM ratings GROUP BY movie_id"
    ),
    "sum of ratings": "SELECT movie_id, SUM(rating) AS s FROM ratings GROUP BY movie_id",
}
TUMULT = {
    "how many members": "SELECT COUNT(*) AS n FROM members",
    "members with a degree": (
        "SELECT COUNT(*) AS n FROM members WHERE education_level IN ('masters', 'doctorate')"
    ),
    "books of all": "SELECT SUM(books_borrowed) AS s FROM members",
    "mean age": "SELECT AVG(age) AS m FROM members",
    "median age": "SELECT MEDIAN(age) AS m FROM members",
    "quantile of age": "SELECT quantile_cont(age, 0.75) AS q FROM members",
    "by education": (
        "SELECT education_level, AVG(books_borrowed) AS m FROM members GROUP BY education_level"
    ),
    "by two keys": (
        "SELECT education_level, gender, COUNT(*) AS n FROM members GROUP BY "
        "education_level, gender"
    ),
    "by bins of age": (
        "SELECT floor(age / 10) * 10 AS decade, COUNT(*) AS n FROM members GROUP BY decade"
    ),
    "spread of age": (
        "SELECT education_level, STDDEV_POP(age) AS s FROM members GROUP BY education_level"
    ),
    "a new column": (
        "SELECT CASE WHEN age < 18 THEN 'child' ELSE 'adult' END AS kind, COUNT(*) AS "
        "n FROM members GROUP BY kind"
    ),
    "a public join": (
        "SELECT z.city, COUNT(*) AS n FROM members m JOIN zip_cities z ON m.zip_code "
        "= z.zip_code GROUP BY z.city"
    ),
    "checkouts by genre": "SELECT genre, COUNT(*) AS n FROM checkouts GROUP BY genre",
    "readers by genre": (
        "SELECT genre, COUNT(DISTINCT member_id) AS n FROM checkouts GROUP BY genre"
    ),
    "a private join": (
        "SELECT education_level, COUNT(*) AS n FROM checkouts c JOIN members m ON "
        "c.member_id = m.id GROUP BY education_level"
    ),
    "a share": (
        "SELECT SUM(CASE WHEN age >= 65 THEN 1 ELSE 0 END) / COUNT(*) AS share FROM members"
    ),
    "filter of a sum": (
        "SELECT genre, COUNT(*) FILTER (WHERE publication_date >= 2000) AS n FROM "
        "checkouts GROUP BY genre"
    ),
    "min and max": "SELECT MIN(age) AS a, MAX(age) AS b FROM members",
}
