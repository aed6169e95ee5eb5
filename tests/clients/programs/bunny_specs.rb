# What Bunny's specs load beside RSpec: nothing by Bundler, no Toxiproxy, and of the client of the management API what
# they use of it.
# ``ruby -r bunny_specs.rb -S rspec``, in the specs' repository; Bunny itself is the installed one.

require "bundler"
require "json"
require "net/http"
require "ostruct"

module Bundler
  def self.require(*) = nil
end

module Toxiproxy
  def self.running? = false
end

module Faraday
  class ResourceNotFound < StandardError; end
end

$LOADED_FEATURES << "rabbitmq/http/client.rb"

module RabbitMQ
  module HTTP
    class Client
      def initialize(url)
        @url = URI(url)
      end

      %w[connections channels exchanges queues].each do |what|
        define_method("list_#{what}") do |vhost = nil|
          path = ["/api", what, *(URI.encode_www_form_component(vhost) if vhost)].join("/")
          JSON.parse(ask(Net::HTTP::Get.new(path)).body, object_class: OpenStruct)
        end
      end

      def close_connection(name)
        ask(Net::HTTP::Delete.new("/api/connections/#{URI.encode_www_form_component(name).gsub("+", "%20")}"))
      end

      private

      def ask(request)
        request.basic_auth("guest", "guest")
        Net::HTTP.start(@url.host, @url.port) { |http| http.request(request) }
      end
    end
  end
end
