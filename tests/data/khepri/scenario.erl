%% Writes a metadata store with RabbitMQ's own functions (README.md).
-module(scenario).
-compile([export_all, nowarn_export_all]).
-include_lib("rabbit_common/include/rabbit.hrl").

r(V, K, N) -> #resource{virtual_host = V, kind = K, name = N}.
x(V, N, T) -> x(V, N, T, true, false, false, []).
x(V, N, T, D, AD, I, Args) ->
    X = #exchange{name = r(V, exchange, N), type = T, durable = D, auto_delete = AD, internal = I, arguments = Args, decorators = {[], []}, options = #{user => <<"guest">>}},
    ok(exchange, rabbit_db_exchange:create_or_get(X)), X.
q(V, N, Type, Args) -> q(V, N, Type, Args, true, false, none, #{}).
q(V, N, Type, Args, D, AD, Owner, TS) ->
    Q0 = amqqueue:new(r(V, queue, N), none, D, AD, Owner, Args, V, #{user => <<"guest">>}, Type),
    Q = amqqueue:set_type_state(amqqueue:set_pid(Q0, self()), TS),
    ok(queue, rabbit_db_queue:create_or_get(Q)), Q.
b(V, S, K, D, Key, Args) -> #binding{source = r(V, exchange, S), key = Key, destination = r(V, K, D), args = Args}.
bind(B) -> ok(bind, rabbit_db_binding:create(B, fun(_, _) -> ok end)).
unbind(B) -> ok(unbind, rabbit_db_binding:delete(B, fun(_, _) -> ok end)).
ok(What, R) -> io:format("~p ~P~n", [What, R, 8]), R.
perm(U, V, C, W, R) ->
    ok(perm, rabbit_db_user:set_user_permissions(#user_permission{user_vhost = #user_vhost{username = U, virtual_host = V}, permission = #permission{configure = C, write = W, read = R}})).
tperm(U, V, X, W, R) ->
    ok(tperm, rabbit_db_user:set_topic_permissions(#topic_permission{topic_permission_key = #topic_permission_key{user_vhost = #user_vhost{username = U, virtual_host = V}, exchange = X}, permission = #permission{write = W, read = R}})).
user(N, Tags) ->
    ok(user, rabbit_db_user:create(internal_user:set_tags(internal_user:create_user(N, <<1,2,3,4, N/binary>>, rabbit_password_hashing_sha256), Tags))).
vhost(V) ->
    ok(vhost, rabbit_db_vhost:create_or_get(V, [], #{description => <<"of ", V/binary>>, tags => [a, b], default_queue_type => <<"classic">>})),
    [x(V, N, T, true, false, N =:= <<"amq.rabbitmq.trace">>, []) || {N, T} <- [{<<>>, direct}, {<<"amq.direct">>, direct}, {<<"amq.topic">>, topic}, {<<"amq.rabbitmq.trace">>, topic}]].
start(Dir, Interval) ->
    {ok, _} = application:ensure_all_started(ra),
    application:set_env([{khepri, [{default_timeout, 10000}, {default_store_id, rabbitmq_metadata}, {default_ra_system, coordination}]}]),
    {ok, _} = application:ensure_all_started(khepri),
    D = filename:join([Dir, "coordination", atom_to_list(node())]),
    ok = filelib:ensure_dir(filename:join(D, "x")),
    C0 = ra_system:default_config(),
    C = C0#{name => coordination, data_dir => D, wal_data_dir => D, wal_max_size_bytes => 64000000, names => ra_system:derive_names(coordination)},
    {ok, _} = ra_system:start(C),
    RaServerConfig = #{machine_config => #{snapshot_interval => Interval}, cluster_name => rabbitmq_metadata, friendly_name => "RabbitMQ metadata store"},
                       
    application:set_env(khepri, snapshot_interval, Interval),
    {ok, rabbitmq_metadata} = khepri:start(coordination, RaServerConfig),
    ok = khepri_cluster:wait_for_leader(rabbitmq_metadata, 10000),
    %% every node registers projections (ETS tables for reads)
    R = (catch rabbit_khepri:register_projections()),
    io:format("projections ~P~n", [R, 10]),
    ok.

setup() ->
    {ok, _} = rabbit_registry:start_link(),
    [rabbit_registry:register(exchange, atom_to_binary(T), list_to_atom("rabbit_exchange_type_" ++ atom_to_list(T))) || T <- [direct, topic, fanout, headers]],
    ok.
first() ->
    vhost(<<"/">>), vhost(<<"vh/ö"/utf8>>), vhost(<<"gone">>),
    user(<<"guest">>, [administrator]), user(<<"alice">>, []), user(<<"bob">>, []), user(<<"eve">>, []),
    [perm(U, V, <<".*">>, <<".*">>, <<".*">>) || U <- [<<"guest">>, <<"alice">>, <<"eve">>], V <- [<<"/">>, <<"vh/ö"/utf8>>, <<"gone">>]],
    perm(<<"alice">>, <<"/">>, <<"^a">>, <<"^b">>, <<"^c">>),
    (catch perm(<<"nobody">>, <<"/">>, <<"">>, <<"">>, <<"">>)),
    tperm(<<"alice">>, <<"/">>, <<"amq.topic">>, <<"^w">>, <<"^r">>), tperm(<<"eve">>, <<"/">>, <<"amq.topic">>, <<"^w">>, <<"^r">>),
    V = <<"/">>,
    x(V, <<"x.topic">>, topic), x(V, <<"x.alt">>, fanout, true, false, false, [{<<"alternate-exchange">>, longstr, <<"amq.topic">>}]),
    x(V, <<"x.auto">>, fanout, true, true, false, []), x(V, <<"x.auto2">>, fanout, true, true, false, []), x(V, <<"x.internal">>, fanout, true, false, true, []),
    x(V, <<"x.gone">>, direct), x(V, <<"x.transient">>, direct, false, false, false, []),
    q(V, <<"classic">>, rabbit_classic_queue, [{<<"x-message-ttl">>, signedint, 60000}]),
    q(V, <<"quorum">>, rabbit_quorum_queue, [{<<"x-queue-type">>, longstr, <<"quorum">>}], true, false, none, #{nodes => [node()]}),
    q(V, <<"stream">>, rabbit_stream_queue, [{<<"x-queue-type">>, longstr, <<"stream">>}], true, false, none, #{name => "__stream_1700000000000000000", nodes => [node()]}),
    q(V, <<"own">>, rabbit_classic_queue, [], false, false, self(), #{}),
    q(V, <<"twice">>, rabbit_classic_queue, []), q(V, <<"gone">>, rabbit_classic_queue, []),
    q(<<"vh/ö"/utf8>>, <<"qü"/utf8>>, rabbit_classic_queue, []),
    bind(b(V, <<"x.topic">>, queue, <<"classic">>, <<"a.#">>, [])), bind(b(V, <<"x.topic">>, queue, <<"classic">>, <<"a.#">>, [{<<"n">>, long, 1}])),
    bind(b(V, <<"x.topic">>, queue, <<"classic">>, <<"a.#">>, [])),
    bind(b(V, <<"x.topic">>, queue, <<"quorum">>, <<"">>, [])), bind(b(V, <<"x.topic">>, exchange, <<"x.alt">>, <<"e">>, [])),
    bind(b(V, <<"x.auto">>, queue, <<"gone">>, <<"">>, [])), bind(b(V, <<"x.auto2">>, queue, <<"classic">>, <<"k">>, [])), bind(b(V, <<"x.gone">>, queue, <<"classic">>, <<"k">>, [])),
    bind(b(V, <<"amq.direct">>, queue, <<"twice">>, <<"k">>, [])), bind(b(<<"vh/ö"/utf8>>, <<"amq.topic">>, queue, <<"qü"/utf8>>, <<"ö"/utf8>>, [])),
    ok(rp, rabbit_db_rtparams:set(cluster_name, <<"c1">>)), ok(rp, rabbit_db_rtparams:set(internal_cluster_id, <<"id">>)), ok(rp, rabbit_db_rtparams:set(other, [{<<"a">>, 1}])), ok(rp, rabbit_db_rtparams:set(dropped, 1)),
    ok(rp, rabbit_db_rtparams:set(V, <<"policy">>, <<"ttl">>, [{<<"pattern">>, <<"^c">>}, {<<"apply-to">>, <<"queues">>}, {<<"definition">>, [{<<"message-ttl">>, 5}]}, {<<"priority">>, 1}])),
    ok(rp, rabbit_db_rtparams:set(V, <<"operator_policy">>, <<"op">>, [{<<"pattern">>, <<".*">>}, {<<"apply-to">>, <<"queues">>}, {<<"definition">>, [{<<"max-length">>, 9}]}, {<<"priority">>, 0}])),
    ok(rp, rabbit_db_rtparams:set(V, <<"policy">>, <<"dropped">>, [{<<"pattern">>, <<"^c">>}])),
    ok(rp, rabbit_db_rtparams:set(V, <<"vhost-limits">>, <<"limits">>, [{<<"max-queues">>, 100}])),
    ok.
second() ->
    V = <<"/">>,
    ok(tags, rabbit_auth_backend_internal:set_tags(<<"bob">>, [monitoring, policymaker], <<"cli">>)),
    ok(hash, rabbit_auth_backend_internal:change_password_hash(<<"alice">>, <<9,9,9,9>>, rabbit_password_hashing_sha512)),
    ok(limits, (catch rabbit_auth_backend_internal:set_user_limits(<<"alice">>, #{<<"max-connections">> => 5, <<"max-channels">> => 7}, <<"cli">>))),
    ok(limits, (catch rabbit_auth_backend_internal:clear_user_limits(<<"alice">>, <<"max-channels">>, <<"cli">>))),
    ok(all, rabbit_auth_backend_internal:update_user_with_hash(<<"guest">>, <<7,7>>, rabbit_password_hashing_sha256, [administrator, management], undefined)),
    ok(policy, (catch rabbit_policy:notify(V, <<"policy">>, <<"ttl">>, [], <<"cli">>))),
    ok(policy, rabbit_db_policy:update(V,
        fun(X) -> #{exchange => X, update_function => fun(X1) -> X1#exchange{policy = p} end} end,
        fun(Q) -> #{queue => Q, update_function => fun(Q1) -> amqqueue:set_policy(Q1, p) end} end)),
    ok(rpdel, rabbit_db_rtparams:delete(V, <<"policy">>, <<"dropped">>)), ok(rpdel, rabbit_db_rtparams:delete(dropped)),
    ok(merge, rabbit_db_vhost:merge_metadata(V, #{description => <<"default">>, tags => [c]})),
    ok(vupdate, rabbit_db_vhost:update(<<"vh/ö"/utf8>>, fun(R) -> vhost:set_limits(R, [{<<"max-connections">>, 3}]) end)),
    ok(deluser, rabbit_db_user:delete(<<"eve">>)),
    ok(delperm, rabbit_db_user:clear_user_permissions(<<"alice">>, <<"vh/ö"/utf8>>)),
    ok(deltperm, rabbit_db_user:clear_topic_permissions(<<"bob">>, V, <<"amq.topic">>)),
    unbind(b(V, <<"x.topic">>, queue, <<"classic">>, <<"a.#">>, [{<<"n">>, long, 1}])),
    unbind(b(V, <<"x.topic">>, queue, <<"quorum">>, <<"">>, [])),
    unbind(b(V, <<"x.auto2">>, queue, <<"classic">>, <<"k">>, [])),
    ok(delx, rabbit_db_exchange:delete(r(V, exchange, <<"x.gone">>), false)), ok(delx, rabbit_db_exchange:delete(r(V, exchange, <<"x.topic">>), true)),
    ok(delx, rabbit_db_exchange:delete(r(V, exchange, <<"x.missing">>), false)),
    ok(delq, rabbit_db_queue:delete(r(V, queue, <<"gone">>), normal)), ok(delq, rabbit_db_queue:delete(r(V, queue, <<"twice">>), normal)),
    q(V, <<"twice">>, rabbit_quorum_queue, [{<<"x-queue-type">>, longstr, <<"quorum">>}]),
    ok(upd, rabbit_db_queue:update(r(V, queue, <<"quorum">>), fun(Q) -> amqqueue:set_type_state(Q, #{nodes => [node(), 'other@vm']}) end)),
    ok(updx, rabbit_db_exchange:update(r(V, exchange, <<"x.alt">>), fun(X) -> X#exchange{scratches = [{k, v}]} end)),
    ok(updd, rabbit_db_queue:update_durable(fun(Q) -> amqqueue:set_state(Q, stopped) end, fun(Q) -> amqqueue:get_type(Q) =:= rabbit_classic_queue end)),
    ok(deltrans, rabbit_db_queue:delete_transient(fun(_) -> true end)),
    ok(setx, (catch rabbit_db_exchange:set([#exchange{name = r(V, exchange, <<"x.set">>), type = headers, durable = true, auto_delete = false, internal = false, arguments = [], decorators = {[], []}}]))),
    ok(recover, (catch rabbit_db_exchange:recover(V))),
    G = <<"gone">>,
    ok(delp, (catch rabbit_db_user:clear_all_permissions_for_vhost(G))), ok(delp, rabbit_db_rtparams:delete(G, '_', '_')),
    ok(delp, (catch rabbit_db_exchange:delete_all(G))), ok(delp, rabbit_db_vhost:delete(G)),
    ok.
dump(File) ->
    {ok, Map} = khepri_adv:get_many(rabbitmq_metadata, [rabbitmq, {if_path_matches, any, undefined}], #{props_to_return => [payload, payload_version]}),
    io:format("~p nodes~n", [map_size(Map)]),
    ok = file:write_file(File, term_to_binary([{P, D, V} || {P, #{data := D, payload_version := V}} <- lists:sort(maps:to_list(Map))])).
tied() ->
    ok(tied, (catch rabbit_db_queue:tie_binding_to_dest_with_keep_while_cond_enable(#{feature_name => tie}))),
    persistent_term:put({flag, tie_binding_to_dest_with_keep_while_cond}, true).
third() ->
    V = <<"/">>,
    x(V, <<"y.auto">>, fanout, true, true, false, []), q(V, <<"y">>, rabbit_classic_queue, []), q(V, <<"z">>, rabbit_classic_queue, []),
    bind(b(V, <<"y.auto">>, queue, <<"y">>, <<"">>, [])), bind(b(V, <<"y.auto">>, queue, <<"z">>, <<"">>, [])), bind(b(V, <<"x.alt">>, exchange, <<"y.auto">>, <<"">>, [])),
    ok(delq, rabbit_db_queue:delete(r(V, queue, <<"y">>), normal)), ok(delq, rabbit_db_queue:delete(r(V, queue, <<"z">>), normal)), ok.
stop() -> ok = khepri:stop(rabbitmq_metadata), application:stop(ra).
