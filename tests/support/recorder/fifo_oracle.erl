%% What RabbitMQ's own machine of a quorum queue makes of the commands of logs, one after the other.
%%
%% It needs no running server, only the server's libraries. main(Asked, Answered) reads a file with one term,
%%
%%     [{Settings, [{Index, Entry}]}]        one pair for each log, Entry being its bytes
%%
%% and writes another,
%%
%%     [[{State, Overview}]]                 for each entry: the state as a snapshot would have it, encoded, and counts
%%
%% A log is applied as by a server that starts anew: version 0 of the machine, until an entry of a leader knows more.
%% Effects are left out: nobody is there to get them. Where the machine fails, the program says where, and fails too.
-module(fifo_oracle).
-export([main/2]).

main(Asked, Answered) ->
    ok = logger:set_primary_config(level, none),
    {ok, Data} = file:read_file(Asked),
    try
        Answers = [log(Settings, Entries) || {Settings, Entries} <- binary_to_term(Data)],
        ok = file:write_file(Answered, term_to_binary(Answers)),
        halt(0)
    catch
        Class:Reason:Stack ->
            io:format(standard_error, "~p: ~p~n~p~n", [Class, Reason, Stack]),
            halt(1)
    end.

log(Settings, Entries) ->
    Module = rabbit_fifo:which_module(0),
    {Answers, _} = lists:mapfoldl(fun entry/2, {0, Module:init(Settings)}, Entries),
    Answers.

entry({Index, Entry}, {Version, State}) ->
    {NewVersion, Meta, Command} = command(binary_to_term(Entry), Version),
    AllMeta = Meta#{index => Index, term => 1, machine_version => NewVersion},
    Module = rabbit_fifo:which_module(NewVersion),
    NewState = try Module:apply(AllMeta, Command, State) of
                   {Applied, _Reply} -> Applied;
                   {Applied, _Reply, _Effects} -> Applied
               catch
                   Class:Reason:Stack -> erlang:raise(Class, {Reason, at, Index, Command}, Stack)
               end,
    Snapshot = term_to_binary(Module:dehydrate_state(NewState)),
    {{Snapshot, counts(Module:overview(NewState))}, {NewVersion, NewState}}.

command({noop, #{ts := Time}, NewVersion}, Version) ->
    {NewVersion, #{system_time => Time}, {machine_version, Version, NewVersion}};
command({'$usr', #{ts := Time}, Command, ReplyMode}, Version) ->
    From = {self(), make_ref()},
    {Version, #{system_time => Time, reply_mode => ReplyMode, from => From}, Command}.

counts(Overview) ->
    maps:with([num_ready_messages, enqueue_message_bytes, num_checked_out, checkout_message_bytes, num_discarded,
               discard_message_bytes, num_discard_checked_out, discard_checkout_message_bytes], Overview).
