{#- A model whose table is a differentially private answer. The query never runs on dbt's connection: the plugin plans
    it, charges it unless an answer of this model is stored, and writes the answer to a table of its own. From then on
    it is a table like others, put in place of the last one by names alone. It has the rows of all blocks and runs that
    were built, and the view NAME_latest those of the latest interval. -#}
{% materialization dp_release, adapter="duckdb", supported_languages=["sql"] %}
  {%- if flags.EMPTY -%}
    {{ exceptions.raise_compiler_error(
        "dp_release: an answer without rows would be paid like one with rows; leave this model out of --empty") }}
  {%- endif -%}
  {%- if config.get("contract").enforced -%}
    {{ exceptions.raise_compiler_error("dp_release: dbt compares a contract with an answer that was paid; nothing was charged; "
        "leave the contract out, and test the model's columns") }}
  {%- endif -%}
  {%- set target = this.incorporate(type="table") -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- set answer = make_intermediate_relation(target, "__dpflow_answer") -%}
  {%- set next = make_intermediate_relation(target) -%}
  {%- set last = make_backup_relation(target, "table" if existing is none else existing.type) -%}

  {%- set latest = api.Relation.create(
      database=this.database, schema=this.schema, identifier=this.identifier ~ "_latest", type="view") -%}
  {%- set taken = load_cached_relation(latest) -%}
  {#- The view's comment says whose it is: another project may have a model of this name, or of the view's. -#}
  {%- set owner = "rows of the latest interval of " ~ model.unique_id -%}
  {%- if taken is not none -%}
    {%- set comments = run_query("select comment from duckdb_views() where comment = '" ~ owner ~ "' and lower(concat_ws('.', "
        "database_name, schema_name, view_name)) = lower('" ~ [taken.database, taken.schema, taken.identifier] | join(".")
        | replace("'", "''") ~ "')") -%}
    {%- if not comments | length -%}
      {{ exceptions.raise_compiler_error("dp_release: " ~ latest ~ " is not of this model, and the view of its latest rows has "
          "this name; nothing was charged; call the model otherwise, or drop that") }}
    {%- endif -%}
  {%- endif -%}
  {%- for node in graph.nodes.values() if node.relation_name == latest | string -%}
    {{ exceptions.raise_compiler_error("dp_release: " ~ node.unique_id ~ " has the name of the view of this model's latest "
        "rows; call one of them otherwise") }}
  {%- endfor -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}

  {#- Before dbt's transaction begins, so that it sees the answer. After a crash the next run finds it in the ledger. -#}
  {%- do adapter.store_relation("dpflow_dbt", answer, [], "", "table", {
      "id": model.unique_id,
      "sql": sql,
      "options": config.get("meta", {}).get("dpflow", {}),
      "existing": existing | string if existing is not none and existing.is_table and not should_full_refresh() else none,
  }) -%}

  {{ drop_relation_if_exists(load_cached_relation(next)) }}
  {{ drop_relation_if_exists(load_cached_relation(last)) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
  {% call statement("main") -%}
    {{ create_table_as(False, next, "select * from " ~ answer) }}
  {%- endcall %}
  {%- if existing is not none -%}
    {%- do drop_indexes_on_relation(existing) -%}
    {{ adapter.rename_relation(existing, last) }}
  {%- endif -%}
  {{ adapter.rename_relation(next, target) }}
  {% call statement("latest") -%}
    create or replace view {{ latest }} as
    select * from {{ target }} where interval_start is not distinct from (select max(interval_start) from {{ target }})
      and (interval_start is not null
        or row(block, run) = (select row(block, run) from {{ target }} order by released_at desc, rowid desc limit 1))
  {%- endcall %}
  {% call statement("owner") -%}
    comment on view {{ latest }} is '{{ owner }}'
  {%- endcall %}
  {% do create_indexes(target) %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {% do apply_grants(target, config.get("grants"), should_revoke=should_revoke(existing, full_refresh_mode=True)) %}
  {% do persist_docs(target, model) %}
  {{ adapter.commit() }}

  {{ drop_relation_if_exists(last) }}
  {{ drop_relation_if_exists(answer) }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {{ return({"relations": [target, latest]}) }}
{% endmaterialization %}
