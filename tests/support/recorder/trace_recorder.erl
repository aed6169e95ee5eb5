%% Drives the real rabbit_variable_queue, one call at a time, and records its state after every operation of a trace.
%%
%% It is loaded into a running node. record_all(Directory) reads every *.trace of the directory (JSON: what
%% warren.replay runs) and writes beside each a *.recorded: the same trace with `initial`, and `state` and `result` in every
%% step. Where the queue itself fails (an assertion of its own), the file says so under `failure` and ends there.
%%
%% Nothing is left to chance. Each trace has a vhost of its own, so that its stores are new, and a process of its own, which
%% owns the queue as the broker's queue process does. The four rate counters are held far below the threshold at which
%% rates are calculated anew. After every call both stores are waited for, and the credit that they granted is taken.
%%
%% The broker's records are read by name: where a field stands is asked of the debug information of its own modules.
-module(trace_recorder).
-export([record_all/1]).

-include_lib("rabbit_common/include/rabbit.hrl").

-define(QUEUE, rabbit_variable_queue).
-define(FAR_BELOW, -1000000000).
-define(DEADLINE_MS, 60000).  % of one operation: a queue can wait for ever for credit that nobody owes it

%% One trace being recorded.
-record(run, {queue, vhost, declared, published = 0, blocked = false, recovery_key, stores = []}).

record_all(Directory) ->
    Traces = filelib:wildcard(filename:join(Directory, "*.trace")),
    [record_file(Path, filename:rootname(Path) ++ ".recorded") || Path <- Traces],
    length(Traces).

record_file(Path, Target) ->
    {ok, Json} = file:read_file(Path),
    Trace = #{<<"vhost">> := VHost, <<"params">> := Params} = rabbit_json:decode(Json),
    Recorder = self(),
    set_environment(Params),
    ok = rabbit_vhost:add(VHost, <<"recorder">>),
    {Pid, Monitor} = spawn_monitor(fun () -> record(Recorder, Trace) end),
    Recorded = collect(Pid, Monitor, Trace, []),
    _ = rabbit_vhost:delete(VHost, <<"recorder">>),
    ok = file:write_file(Target, rabbit_json:encode(Recorded)).

collect(Pid, Monitor, Trace, Steps) ->
    receive
        {initial, State}               -> collect(Pid, Monitor, Trace#{<<"initial">> => State}, Steps);
        {step, Step}                   -> collect(Pid, Monitor, Trace, [Step | Steps]);
        {'DOWN', Monitor, _, _, normal} -> Trace#{<<"steps">> => lists:reverse(Steps)};
        {'DOWN', Monitor, _, _, Reason} ->
            Shown = iolist_to_binary(io_lib:format("~0P", [Reason, 60])),
            Trace#{<<"steps">> => lists:reverse(Steps), <<"failure">> => Shown}
    after ?DEADLINE_MS ->
            exit(Pid, kill),
            collect(Pid, Monitor, Trace, Steps)
    end.

set_environment(#{<<"segment_entry_count">> := SegmentEntryCount, <<"io_batch_size">> := IoBatchSize,
                  <<"credit_disc_bound">> := [Initial, MoreAfter], <<"reduce_every">> := ReduceEvery,
                  <<"max_journal_entries">> := MaxJournalEntries}) ->
    [application:set_env(rabbit, Key, Value) ||
        {Key, Value} <- [{queue_index_segment_entry_count, SegmentEntryCount},
                         {msg_store_io_batch_size, IoBatchSize},
                         {msg_store_credit_disc_bound, {Initial, MoreAfter}},
                         {queue_explicit_gc_run_operation_threshold, ReduceEvery},
                         {lazy_queue_explicit_gc_run_operation_threshold, ReduceEvery},
                         {queue_index_max_journal_entries, MaxJournalEntries}]].

record(Recorder, #{<<"vhost">> := VHost, <<"params">> := #{<<"durable">> := Durable}, <<"steps">> := Steps}) ->
    Name = rabbit_misc:r(VHost, queue, <<"q">>),
    Declared = amqqueue:new(Name, self(), Durable, false, none, [], VHost, #{}, rabbit_classic_queue),
    Run = forced_rates(begin_queue(new, #run{vhost = VHost, declared = Declared})),
    Recorder ! {initial, state(Run)},
    _ = lists:foldl(fun (#{<<"op">> := Op}, Run0) ->
                            {Result, Run1} = do(Op, Run0#run{blocked = false}),
                            Blocked = Run1#run.blocked,
                            Run2 = settle(Run1),
                            Step = #{<<"op">> => Op, <<"state">> => state(Run2)},
                            Step1 = case Result of none -> Step; _ -> Step#{<<"result">> => Result} end,
                            Step2 = case Blocked of
                                        false -> Step1;
                                        true  -> Step1#{<<"blocked_at_end_of_last_call">> => true}
                                    end,
                            Recorder ! {step, Step2},
                            Run2
                    end, Run, Steps),
    ok.

%% What a trace holds in its hand: rates, credit.

begin_queue(Terms, Run = #run{declared = Declared}) ->
    Owner = self(),
    Queue = ?QUEUE:init(Declared, Terms, fun (?QUEUE, Fun) -> Owner ! {run_on_queue, Fun}, ok end),
    IndexDirectory = field(index_state, qistate, rabbit_queue_index, dir, Queue),
    Run#run{queue = Queue, recovery_key = filename:basename(IndexDirectory), stores = stores(Queue)}.

forced_rates(Run) -> forced_rates(Run, {1.0, 0.0, 0.0, 0.0}).

forced_rates(Run = #run{queue = Queue}, {In, Out, AckIn, AckOut}) ->
    Rates = lists:foldl(fun ({Key, Value}, R) -> set(rates, ?QUEUE, Key, Value, R) end, get(rates, Queue),
                        [{in, In}, {out, Out}, {ack_in, AckIn}, {ack_out, AckOut}]),
    Run#run{queue = set(rates, Rates, Queue)}.

stores(Queue) ->
    {Persistent, Transient} = get(msg_store_clients, Queue),
    [{Client, store_pid(Client)} || Client <- [Persistent, Transient]].

store_pid(undefined) -> undefined;
store_pid(Client)    -> get(client_msstate, rabbit_msg_store, server, Client).

%% Each call of the queue goes through here.
call(Fun, Run = #run{queue = Queue}) ->
    Held = hold_counters({?FAR_BELOW, ?FAR_BELOW, ?FAR_BELOW, ?FAR_BELOW}, Queue),
    {Answer, Queue1} = Fun(Held),
    {Answer, settle(Run#run{queue = Queue1, blocked = credit_flow:blocked()})}.

hold_counters({In, Out, AckIn, AckOut}, Queue) ->
    lists:foldl(fun ({Key, Value}, Q) -> set(Key, Value, Q) end, Queue,
                [{in_counter, In}, {out_counter, Out}, {ack_in_counter, AckIn}, {ack_out_counter, AckOut}]).

%% Everything written has been received by its store, and what came back (credit, confirms) has been taken.
settle(Run = #run{stores = Stores}) ->
    [rabbit_msg_store:contains(<<0:128>>, Client) || {Client, _} <- Stores, Client =/= undefined],
    take_grants(),
    take_confirms(Run).

take_grants() ->
    receive
        {bump_credit, Grant} -> credit_flow:handle_bump_msg(Grant), take_grants()
    after 0 -> ok
    end.

take_confirms(Run = #run{queue = Queue}) ->
    receive
        {run_on_queue, Fun} -> take_confirms(Run#run{queue = Fun(?QUEUE, Queue)})
    after 0 -> Run
    end.

%% N calls; the answers in order.
times(N, Fun, Run) ->
    lists:mapfoldl(fun (_, Run0) -> call(Fun, Run0) end, Run, lists:seq(1, N)).

call_only(Fun, Run) ->
    {_, Run1} = call(fun (Queue) -> {none, Fun(Queue)} end, Run),
    {none, Run1}.

%% Operations: each answers {Result or none, Run}.

do(Op = #{<<"op">> := Name}, Run) -> do(Name, Op, Run).

do(<<"publish">>, Op, Run) ->
    Delivered = maps:get(<<"delivered">>, Op, false),
    {none, lists:foldl(fun (N, Run0) ->
                               {Message, Properties} = message(N, Op, Run),
                               {_, Run1} = call_only(fun (Queue) ->
                                   ?QUEUE:publish(Message, Properties, Delivered, self(), flow, Queue) end, Run0),
                               Run1#run{published = N + 1}
                       end, Run, next(Op, Run))};
do(<<"batch_publish">>, Op, Run) ->
    Numbers = next(Op, Run),
    Delivered = maps:get(<<"delivered">>, Op, false),
    Batch = [begin {Message, Properties} = message(N, Op, Run), {Message, Properties, Delivered} end || N <- Numbers],
    {none, Run1} = call_only(fun (Queue) -> ?QUEUE:batch_publish(Batch, self(), flow, Queue) end, Run),
    {none, Run1#run{published = Run#run.published + length(Numbers)}};
do(<<"publish_delivered">>, Op, Run) ->
    {Tags, Run1} = lists:mapfoldl(fun (N, Run0) ->
                                          {Message, Properties} = message(N, Op, Run),
                                          {Tag, Run1} = call(fun (Queue) ->
                                              ?QUEUE:publish_delivered(Message, Properties, self(), flow, Queue) end,
                                              Run0),
                                          {Tag, Run1#run{published = N + 1}}
                                  end, Run, next(Op, Run)),
    {#{<<"ack_tags">> => ranges(Tags)}, Run1};
do(<<"fetch">>, #{<<"n">> := N, <<"ack_required">> := AckRequired}, Run) ->
    {Answers, Run1} = times(N, fun (Queue) -> ?QUEUE:fetch(AckRequired, Queue) end, Run),
    Found = [{number(Message), Delivered, Tag} || {Message, Delivered, Tag} <- Answers],
    {#{<<"messages">> => ranges([M || {M, _, _} <- Found]),
       <<"redelivered">> => ranges([M || {M, true, _} <- Found]),
       <<"ack_tags">> => ranges([T || {_, _, T} <- Found, AckRequired]),
       <<"empty">> => N - length(Found)}, Run1};
do(<<"drop">>, #{<<"n">> := N, <<"ack_required">> := AckRequired}, Run) ->
    {Answers, Run1} = times(N, fun (Queue) -> ?QUEUE:drop(AckRequired, Queue) end, Run),
    Found = [{number(Id), Tag} || {Id, Tag} <- Answers],
    {#{<<"messages">> => ranges([M || {M, _} <- Found]),
       <<"ack_tags">> => ranges([T || {_, T} <- Found, AckRequired]),
       <<"empty">> => N - length(Found)}, Run1};
do(<<"ack">>, Op, Run) ->
    {Ids, Run1} = call(fun (Queue) -> ?QUEUE:ack(tags(Op), Queue) end, Run),
    {#{<<"messages">> => ranges([number(Id) || Id <- Ids])}, Run1};
do(<<"ack_each">>, Op, Run) ->
    {none, lists:foldl(fun (Tag, Run0) ->
                               element(2, call(fun (Queue) -> ?QUEUE:ack([Tag], Queue) end, Run0))
                       end, Run, tags(Op))};
do(<<"requeue">>, Op, Run) ->
    {Ids, Run1} = call(fun (Queue) -> ?QUEUE:requeue(tags(Op), Queue) end, Run),
    {#{<<"messages_returned_order">> => ranges([number(Id) || Id <- Ids])}, Run1};
do(<<"requeue_each">>, Op, Run) ->
    {none, lists:foldl(fun (Tag, Run0) ->
                               element(2, call(fun (Queue) -> ?QUEUE:requeue([Tag], Queue) end, Run0))
                       end, Run, tags(Op))};
do(<<"set_duration">>, #{<<"duration">> := Duration}, Run) ->
    Target = case Duration of <<"infinity">> -> infinity; _ -> Duration end,
    call_only(fun (Queue) -> ?QUEUE:set_ram_duration_target(Target, Queue) end, Run);
do(<<"set_rates">>, #{<<"in">> := In, <<"out">> := Out, <<"ack_in">> := AckIn, <<"ack_out">> := AckOut}, Run) ->
    {none, forced_rates(Run, {float(In), float(Out), float(AckIn), float(AckOut)})};
do(<<"ram_duration">>, Op, Run = #run{queue = Queue}) ->
    #{<<"in">> := In, <<"out">> := Out, <<"ack_in">> := AckIn, <<"ack_out">> := AckOut, <<"elapsed_us">> := Us} = Op,
    Before = erlang:monotonic_time() - erlang:convert_time_unit(Us, microsecond, native),
    Rates = set(rates, ?QUEUE, timestamp, Before, get(rates, Queue)),
    {Duration, Queue1} = ?QUEUE:ram_duration(hold_counters({In, Out, AckIn, AckOut}, set(rates, Rates, Queue))),
    Rates1 = get(rates, Queue1),
    [After | Shown] = [get(rates, ?QUEUE, Key, Rates1) || Key <- [timestamp, in, out, ack_in, ack_out]],
    {#{<<"measured_elapsed_us">> => erlang:convert_time_unit(After - Before, native, nanosecond) / 1000,
       <<"duration">> => Duration,
       <<"rates">> => Shown,
       <<"ram_msg_count_prev">> => get(ram_msg_count_prev, Queue1),
       <<"ram_ack_count_prev">> => get(ram_ack_count_prev, Queue1)}, Run#run{queue = Queue1}};
do(<<"resume">>, _, Run) ->
    call_only(fun ?QUEUE:resume/1, Run);
do(<<"bump">>, _, Run) ->
    call_only(fun bumped/1, Run);
do(<<"settle">>, _, Run) ->
    bump_until_settled(1, Run);
do(<<"purge">>, _, Run) ->
    {Purged, Run1} = call(fun ?QUEUE:purge/1, Run),
    {#{<<"purged">> => Purged}, Run1};
do(<<"purge_acks">>, _, Run) ->
    call_only(fun ?QUEUE:purge_acks/1, Run);
do(<<"set_mode">>, #{<<"mode">> := Mode}, Run) ->
    call_only(fun (Queue) -> ?QUEUE:set_queue_mode(binary_to_existing_atom(Mode, utf8), Queue) end, Run);
do(<<"ackfold">>, Op, Run) ->
    {Seen, Run1} = call(fun (Queue) ->
        ?QUEUE:ackfold(fun (Message, _Tag, Acc) -> [number(Message) | Acc] end, [], Queue, tags(Op)) end, Run),
    {#{<<"messages">> => ranges(lists:reverse(Seen))}, Run1};
do(<<"fold">>, _, Run) ->
    Add = fun (Message, _Properties, Unacked, Acc) -> {cont, [{number(Message), Unacked} | Acc]} end,
    {Reversed, Run1} = call(fun (Queue) -> ?QUEUE:fold(Add, [], Queue) end, Run),
    Seen = lists:reverse(Reversed),
    {#{<<"messages">> => ranges([M || {M, _} <- Seen]), <<"unacked">> => ranges([M || {M, true} <- Seen])}, Run1};
do(<<"dropwhile">>, Op, Run) ->
    {Stopper, Run1} = call(fun (Queue) -> ?QUEUE:dropwhile(expires_below(Op), Queue) end, Run),
    {#{<<"stopped_at_expiry">> => expiry(Stopper)}, Run1};
do(<<"fetchwhile">>, Op, Run) ->
    Add = fun (Message, Tag, Acc) -> [{number(Message), Tag} | Acc] end,
    {Reversed, Run1} = call(fun (Queue) ->
                                    {_, Acc, Queue1} = ?QUEUE:fetchwhile(expires_below(Op), Add, [], Queue),
                                    {Acc, Queue1}
                            end, Run),
    {Messages, Tags} = lists:unzip(lists:reverse(Reversed)),
    {#{<<"messages">> => ranges(Messages), <<"ack_tags">> => ranges(Tags)}, Run1};
do(<<"drain_confirmed">>, _, Run) ->
    {Ids, Run1} = call(fun ?QUEUE:drain_confirmed/1, Run),
    {#{<<"messages">> => ranges([number(Id) || Id <- Ids])}, Run1};
do(<<"flush">>, _, Run) ->
    call_only(fun ?QUEUE:handle_pre_hibernate/1, Run);
do(<<"sync">>, _, Run) ->
    call_only(fun ?QUEUE:timeout/1, Run);
do(<<"index_files">>, _, Run) ->
    {#{<<"files">> => index_files(Run)}, Run};
do(<<"restart">>, Op = #{<<"kind">> := Kind}, Run = #run{vhost = VHost, queue = Queue, recovery_key = Key}) ->
    _ = ?QUEUE:terminate(shutdown, Queue),
    Files = index_files(Run),
    {Terms, Shown} = case Kind of
                         <<"clean">> -> {ok, Stored} = rabbit_recovery_terms:read(VHost, Key), {Stored, terms(Stored)};
                         <<"dirty">> -> ok = rabbit_recovery_terms:clear(VHost), {non_clean_shutdown, null}
                     end,
    case Op of
        #{<<"stores">> := <<"restarted">>} ->
            ok = ?QUEUE:stop(VHost),
            {ok, [Terms]} = ?QUEUE:start(VHost, [amqqueue:get_name(Run#run.declared)]);
        #{} -> ok
    end,
    take_grants(),
    take_reminder(),
    take_confirms(Run),
    [credit_flow:peer_down(Pid) || {_, Pid} <- Run#run.stores, Pid =/= undefined],
    Run1 = forced_rates(begin_queue(Terms, Run)),
    {#{<<"files">> => Files, <<"recovery_terms">> => Shown}, Run1}.

bump_until_settled(Resumes, Run) ->
    {none, Run1} = call_only(fun bumped/1, Run),
    case get(waiting_bump, Run1#run.queue) orelse Run1#run.blocked of
        false -> {#{<<"resumes">> => Resumes}, Run1};
        true  -> bump_until_settled(Resumes + 1, Run1)
    end.

bumped(Queue) ->
    take_reminder(),
    ?QUEUE:resume(?QUEUE:handle_info(bump_reduce_memory_use, Queue)).

take_reminder() ->
    receive bump_reduce_memory_use -> take_reminder() after 0 -> ok end.

%% What operations say.

next(Op, #run{published = Published}) -> lists:seq(Published, Published + maps:get(<<"n">>, Op, 1) - 1).

%% A list of sizes or expiries starts over where it ends.
message(N, #{<<"size">> := Sizes, <<"persistent">> := Persistent} = Op, #run{vhost = VHost, published = Published}) ->
    Size = nth(N - Published, Sizes),
    Text = [integer_to_list(N), $:],
    Body = binary:part(iolist_to_binary(lists:duplicate(Size div iolist_size(Text) + 1, Text)), 0, Size),
    DeliveryMode = case Persistent of true -> 2; false -> 1 end,
    Content = #content{class_id = 60, properties = none, properties_bin = <<16#10, 0, DeliveryMode>>,
                       protocol = rabbit_framing_amqp_0_9_1, payload_fragments_rev = [Body || Size > 0]},
    Expiry = case nth(N - Published, maps:get(<<"expiry">>, Op, 0)) of 0 -> undefined; Us -> Us end,
    {#basic_message{exchange_name = rabbit_misc:r(VHost, exchange, <<>>), routing_keys = [<<"q">>], content = Content,
                    id = <<"msgtrace", N:64>>, is_persistent = Persistent},
     #message_properties{expiry = Expiry, size = Size, needs_confirming = maps:get(<<"confirm">>, Op, false)}}.

nth(_, Value) when is_integer(Value) -> Value;
nth(Index, Values)                   -> lists:nth(Index rem length(Values) + 1, Values).

number(#basic_message{id = Id})    -> number(Id);
number(<<"msgtrace", Number:64>>) -> Number.

tags(#{<<"tags">> := Tags}) ->
    lists:append([case Tag of
                      [First, Last]       -> lists:seq(First, Last);
                      [First, Last, Step] -> lists:seq(First, Last, Step)
                  end || Tag <- Tags]).

expires_below(#{<<"expiry_below">> := Limit}) ->
    fun (#message_properties{expiry = Expiry}) -> is_integer(Expiry) andalso Expiry < Limit end.

expiry(#message_properties{expiry = Expiry}) when is_integer(Expiry) -> Expiry;
expiry(_)                                                            -> null.

%% Numbers as [first, last] of each ascending stretch.
ranges([])                -> [];
ranges([First | Numbers]) -> ranges(Numbers, First, First).

ranges([Next | Numbers], First, Last) when Next =:= Last + 1 -> ranges(Numbers, First, Next);
ranges([Next | Numbers], First, Last)                        -> [[First, Last] | ranges(Numbers, Next, Next)];
ranges([], First, Last)                                      -> [[First, Last]].

%% What a queue looks like.

index_files(#run{vhost = VHost, recovery_key = Key}) ->
    Directory = filename:join([rabbit_vhost:msg_store_dir_path(VHost), "queues", Key]),
    [begin
         {ok, Data} = file:read_file(filename:join(Directory, Name)),
         #{<<"name">> => list_to_binary(Name), <<"size">> => byte_size(Data),
           <<"sha256">> => string:lowercase(binary:encode_hex(crypto:hash(sha256, Data)))}
     end || Name <- lists:sort(filelib:wildcard("*.{idx,jif}", Directory))].

terms(Stored) ->
    Keys = [next_seq_id, next_deliver_seq_id, persistent_count, persistent_bytes],
    Shown = maps:from_list([{atom_to_binary(Key, utf8), proplists:get_value(Key, Stored)} || Key <- Keys]),
    Shown#{<<"persistent_ref">> => null,  % a random id
           <<"segments">> => [[Number, Unacked] || {Number, Unacked} <- lists:sort(proplists:get_value(segments, Stored))]}.

state(#run{queue = Queue, stores = Stores}) ->
    Same = [bytes, delta_transient_bytes, len, mode, next_deliver_seq_id, next_seq_id, persistent_bytes,
            persistent_count, ram_bytes, ram_msg_count, target_ram_count, transient_threshold, unacked_bytes,
            waiting_bump],
    Index = get(index_state, Queue),
    {Segments, Recent} = get(qistate, rabbit_queue_index, segments, Index),
    Pending = [gb_trees:size(get(Key, Queue)) || Key <- [ram_pending_ack, disk_pending_ack, qi_pending_ack]],
    InMemory = maps:merge(Segments, maps:from_list([{segment(num, S), S} || S <- Recent])),
    maps:merge(
      maps:from_list([{atom_to_binary(Key, utf8), get(Key, Queue)} || Key <- Same]),
      #{<<"calls_since_reduce">> => get(memory_reduction_run_count, Queue),
        <<"credit">> => [credit(Pid) || {_, Pid} <- Stores],
        <<"delta">> => [shown(get(delta, ?QUEUE, Key, get(delta, Queue)))
                        || Key <- [start_seq_id, count, transient, end_seq_id]],
        <<"disk_reads">> => get(disk_read_count, Queue),
        <<"disk_writes">> => get(disk_write_count, Queue),
        <<"index_dirty_count">> => get(qistate, rabbit_queue_index, dirty_count, Index),
        <<"index_segments">> => [[N, segment(unacked, S), array:sparse_size(segment(journal_entries, S))]
                                 || {N, S} <- lists:sort(maps:to_list(InMemory))],
        <<"pending_acks">> => Pending,
        <<"ram_ack_count">> => hd(Pending) + lists:last(Pending),
        <<"q1">> => shown_queue(get(q1, Queue)), <<"q2">> => shown_queue(get(q2, Queue)),
        <<"q3">> => shown_queue(get(q3, Queue)), <<"q4">> => shown_queue(get(q4, Queue))}).

credit(undefined) -> null;
credit(Pid) ->
    case erlang:get({credit_from, Pid}) of
        undefined -> element(1, application:get_env(rabbit, msg_store_credit_disc_bound, undefined));
        Credit    -> Credit
    end.

shown(undefined) -> null;
shown(Value)     -> Value.

shown_queue(Queue) ->
    case lqueue:len(Queue) of
        0      -> [0, null, null];
        Length ->
            Ends = [get(msg_status, ?QUEUE, seq_id, End) || {value, End} <- [lqueue:peek(Queue), lqueue:peek_r(Queue)]],
            [Length | Ends]
    end.

segment(Key, Segment) -> get(segment, rabbit_queue_index, Key, Segment).

%% Fields of records by name; by default of the queue's own record.

get(Key, Queue)                     -> get(vqstate, ?QUEUE, Key, Queue).
get(Record, Module, Key, Value)     -> element(place(Record, Module, Key), Value).
set(Key, New, Queue)                -> set(vqstate, ?QUEUE, Key, New, Queue).
set(Record, Module, Key, New, Value) -> setelement(place(Record, Module, Key), Value, New).
field(Outer, Record, Module, Key, Queue) -> get(Record, Module, Key, get(Outer, Queue)).

place(Record, Module, Key) ->
    case persistent_term:get({?MODULE, Record, Module}, undefined) of
        undefined ->
            {ok, {_, [{abstract_code, {_, Forms}}]}} = beam_lib:chunks(code:which(Module), [abstract_code]),
            [Fields] = [Fields || {attribute, _, record, {Name, Fields}} <- Forms, Name =:= Record],
            Names = [field_name(Field) || Field <- Fields],
            Places = maps:from_list(lists:zip(Names, lists:seq(2, length(Names) + 1))),
            persistent_term:put({?MODULE, Record, Module}, Places),
            maps:get(Key, Places);
        Places ->
            maps:get(Key, Places)
    end.

field_name({typed_record_field, Field, _})         -> field_name(Field);
field_name({record_field, _, {atom, _, Name}})     -> Name;
field_name({record_field, _, {atom, _, Name}, _})  -> Name.
